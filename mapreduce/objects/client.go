// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// environment are the variables that say where objects are and who asks.
var environment = append([]string{
	// Keys.
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
	// Keys in a file.
	"AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "HOME",
	// Keys of a role.
	"AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE",
	"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
	"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
}, places...)

// places are those of them that hold no keys, and lead to none.
var places = []string{
	"AWS_EC2_METADATA_DISABLED",
	// The store.
	"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION",
	// The way there.
	"AWS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// Environment returns the names of all variables that this package looks at. A
// process that is started with an environment of its own, and is to read or
// write objects, needs those of them that are set:
//
//   - AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or
//     AWS_PROFILE and AWS_SHARED_CREDENTIALS_FILE (else .aws/credentials in
//     HOME), or those of a role of a container, a pod or a virtual machine
//     (AWS_ROLE_*, AWS_WEB_IDENTITY_*, AWS_CONTAINER_*,
//     AWS_EC2_METADATA_DISABLED). What is found first, in this order, counts. Without any,
//     requests are not signed, which is enough for public objects.
//   - AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (else AWS itself), AWS_REGION or AWS_DEFAULT_REGION.
//   - AWS_CA_BUNDLE, SSL_CERT_FILE, SSL_CERT_DIR: certificates to trust; HTTP_PROXY, HTTPS_PROXY, NO_PROXY.
//
// Several of them are secrets, and all code of that process can read them.
func Environment() []string { return append([]string(nil), environment...) }

// Places returns the names of those variables of Environment that say where the store is, and neither hold keys
// nor lead to any. A process that is not to have this one's rights may see them.
func Places() []string { return append([]string(nil), places...) }

// Client asks one store. It may be used by several goroutines.
type Client struct {
	core     *minio.Core
	creds    *credentials.Credentials
	endpoint string

	stall   time.Duration // a read that brings nothing for so long is begun anew
	retries int           // in a row without a byte
	backoff time.Duration // before the first of them; twice as long each time
}

// config is what a client depends on.
type config struct{ values [32]string }

var clients struct {
	sync.Mutex
	made map[config]*Client
}

// Open returns the client that the environment describes. It sends nothing yet.
// The error names the variable that is wrong.
func Open() (*Client, error) {
	var key config
	for i, name := range environment {
		key.values[i] = os.Getenv(name)
	}
	clients.Lock()
	defer clients.Unlock()
	if c := clients.made[key]; c != nil {
		return c, nil
	}
	c, err := newClient()
	if err != nil {
		return nil, err
	}
	if clients.made == nil {
		clients.made = map[config]*Client{}
	}
	clients.made[key] = c
	return c, nil
}

// awsEndpoint is asked if no variable names another one.
const awsEndpoint = "https://s3.amazonaws.com"

// first returns the first variable that is set, and its value.
func first(names ...string) (name, value string) {
	for _, name := range names {
		if v := os.Getenv(name); v != "" {
			return name, v
		}
	}
	return "", ""
}

func newClient() (*Client, error) {
	name, endpoint := first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
	custom := endpoint != ""
	if !custom {
		endpoint = awsEndpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("objects: %s=%q is no endpoint: write https://HOST or https://HOST:PORT", name, endpoint)
	}
	_, region := first("AWS_REGION", "AWS_DEFAULT_REGION")
	secure := u.Scheme == "https"
	transport, err := newTransport(secure)
	if err != nil {
		return nil, err
	}
	c := &Client{endpoint: u.Scheme + "://" + u.Host, stall: 30 * time.Second, retries: 8, backoff: 100 * time.Millisecond}
	c.creds = newCredentials(custom, region)
	c.core, err = minio.NewCore(u.Host, &minio.Options{Creds: c.creds, Secure: secure, Transport: transport, Region: region})
	if err != nil {
		return nil, fmt.Errorf("objects: endpoint %s: %w", endpoint, err)
	}
	c.core.SetAppInfo("quern", "1")
	return c, nil
}

func newTransport(secure bool) (*http.Transport, error) {
	t, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, fmt.Errorf("objects: %w", err)
	}
	t.MaxIdleConnsPerHost = 128
	t.WriteBufferSize, t.ReadBufferSize = 64<<10, 64<<10
	bundle := os.Getenv("AWS_CA_BUNDLE")
	if !secure || bundle == "" {
		return t, nil
	}
	pem, err := os.ReadFile(bundle)
	if err != nil {
		return nil, fmt.Errorf("objects: AWS_CA_BUNDLE: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("objects: AWS_CA_BUNDLE: %s holds no certificate in PEM form", bundle)
	}
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	t.TLSClientConfig.RootCAs = pool
	return t, nil
}

// newCredentials returns the chain that Environment tells of. The virtual
// machine's own service is asked only for AWS itself, since waiting for it
// elsewhere would be in vain.
func newCredentials(custom bool, region string) *credentials.Credentials {
	chain := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	_, role := first("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
	if role != "" || !custom && os.Getenv("AWS_EC2_METADATA_DISABLED") != "true" {
		chain = append(chain, &credentials.IAM{
			Region: region,
			Client: &http.Client{Transport: http.DefaultTransport, Timeout: 5 * time.Second},
		})
	}
	return credentials.NewChainCredentials(chain)
}

// anonymous says whether requests are not signed.
func (c *Client) anonymous() bool {
	v, err := c.creds.GetWithContext(nil)
	return err == nil && v.SignerType.IsAnonymous()
}

// Endpoint returns the URL of the store.
func (c *Client) Endpoint() string { return c.endpoint }

// errStalled ends a read that brings nothing.
var errStalled = errors.New("no byte came for too long")
