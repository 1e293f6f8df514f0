// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"os"
	"testing"

	"github.com/minio/minio-go/v7"
)

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

// quickRetries returns the client library's own client, with few retries.
func quickRetries(t *testing.T, c *Client) *minio.Client {
	t.Helper()
	u := c.core.EndpointURL()
	m, err := minio.New(u.Host, &minio.Options{Creds: c.creds, Secure: u.Scheme == "https", Region: "us-east-1", MaxRetries: 1})
	must(t, err)
	return m
}
