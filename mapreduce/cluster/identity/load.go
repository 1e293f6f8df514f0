// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Load reads the certificate of a role from a folder that Create or Issue has made, and
// returns what a server and a client of that role are configured with. The client
// expects a master; see To for others. A role that may not serve gets no server.
//
// Files are looked at before every handshake and read again when they have changed, so
// that certificates, the authority's too, can be renewed while the process runs. What can't
// be read then leaves what was read before. Errors say which file is wrong and why:
// one is missing, damaged, expired, of another role or another authority.
func Load(dir, role string) (server, client *tls.Config, err error) {
	if err := checkRole(role); err != nil {
		return nil, nil, err
	}
	h := &holder{dir: dir, role: role, now: time.Now}
	now, err := h.current()
	if err != nil {
		return nil, nil, err
	}
	if err := now.check(h.now()); err != nil {
		return nil, nil, err
	}
	client = &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: ServerName(Master),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return h.own()
		},
		// The library's own check knows only the authorities that were there at the
		// beginning. VerifyConnection does all that it does, with those of now.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return h.verify(state, state.ServerName, x509.ExtKeyUsageServerAuth)
		},
	}
	if slices.Contains(usages(role), x509.ExtKeyUsageServerAuth) {
		server = &tls.Config{
			MinVersion: tls.VersionTLS13,
			ClientAuth: tls.RequireAnyClientCert, // and VerifyConnection, as above
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return h.own()
			},
			VerifyConnection: func(state tls.ConnectionState) error {
				return h.verify(state, "", x509.ExtKeyUsageClientAuth)
			},
		}
	}
	return server, client, nil
}

// To returns a client's configuration for a server of another role.
func To(client *tls.Config, role string) *tls.Config {
	c := client.Clone()
	c.ServerName = ServerName(role)
	return c
}

// files are what a folder holds for a role.
type files struct {
	ca, cert, key string
	trusted       *x509.CertPool
	authorities   []*x509.Certificate
	certificate   *tls.Certificate
	role          string
}

// stamp tells whether files have changed.
type stamp [3]struct {
	info fs.FileInfo // nil: not there
}

func (s stamp) same(o stamp) bool {
	for i := range s {
		a, b := s[i].info, o[i].info
		if (a == nil) != (b == nil) {
			return false
		}
		if a != nil && !(os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()) {
			return false
		}
	}
	return true
}

// holder holds what was read last.
type holder struct {
	dir, role string
	now       func() time.Time

	mu     sync.Mutex
	seen   stamp
	files  *files
	failed error // of reading what was seen, if files is older
}

// current returns what the files hold, or what they held when they could last be read.
func (h *holder) current() (*files, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := &files{
		ca: filepath.Join(h.dir, CAFile), cert: filepath.Join(h.dir, CertFile(h.role)), key: filepath.Join(h.dir, KeyFile(h.role)),
		role: h.role,
	}
	var now stamp
	for i, path := range []string{f.ca, f.cert, f.key} {
		if info, err := os.Stat(path); err == nil {
			now[i].info = info
		}
	}
	if h.files == nil || !now.same(h.seen) {
		if h.failed = f.read(); h.failed == nil {
			h.files = f
		}
		h.seen = now
	}
	if h.files == nil {
		return nil, h.failed
	}
	return h.files, nil
}

func (f *files) read() error {
	authorities, err := readCertificates(f.ca)
	if err != nil {
		return missing(f.ca, err)
	}
	f.authorities, f.trusted = authorities, x509.NewCertPool()
	for _, c := range authorities {
		if !c.IsCA {
			return fmt.Errorf("%s holds a certificate that is no authority's: %s", f.ca, describe(c))
		}
		f.trusted.AddCert(c)
	}
	certificates, err := readCertificates(f.cert)
	if err != nil {
		return missing(f.cert, err)
	}
	text, err := os.ReadFile(f.key)
	if err != nil {
		return missing(f.key, fmt.Errorf("read the private key: %w", err))
	}
	key, err := parseKey(text)
	if err != nil {
		return fmt.Errorf("%s: %w", f.key, err)
	}
	leaf := certificates[0]
	if public, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(&key.PublicKey) {
		return fmt.Errorf("%s is not the key of %s: they were made at different times", f.key, f.cert)
	}
	f.certificate = &tls.Certificate{PrivateKey: key, Leaf: leaf}
	for _, c := range certificates {
		f.certificate.Certificate = append(f.certificate.Certificate, c.Raw)
	}
	return nil
}

func missing(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		file := filepath.Base(path)
		if role := strings.TrimSuffix(strings.TrimSuffix(file, ".pem"), "-key"); checkRole(role) == nil {
			file += " of the role " + role
		}
		return fmt.Errorf("%w: make certificates with 'quern certs', and copy %s", err, file)
	}
	return err
}

// check says what peers would find wrong about our own certificate.
func (f *files) check(now time.Time) error {
	leaf := f.certificate.Leaf
	role, err := roleOf(leaf)
	if err == nil && role != f.role {
		err = fmt.Errorf("it is a %s's", role)
	}
	if err != nil {
		return fmt.Errorf("%s is not the certificate of a %s: %w", f.cert, f.role, err)
	}
	if err := expired(leaf, now); err != nil {
		return fmt.Errorf("%s: %w; renew it with 'quern certs'", f.cert, err)
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: f.trusted, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("%s was not signed by an authority in %s, but by %q: they are not of one cluster", f.cert, f.ca, leaf.Issuer.CommonName)
	case err != nil:
		return fmt.Errorf("%s: %w", f.cert, f.explain(leaf, now, err))
	}
	return nil
}

// own returns the certificate to show.
func (h *holder) own() (*tls.Certificate, error) {
	f, err := h.current()
	if err != nil {
		return nil, err
	}
	if err := expired(f.certificate.Leaf, h.now()); err != nil {
		h.mu.Lock()
		failed := h.failed
		h.mu.Unlock()
		if failed != nil {
			return nil, fmt.Errorf("%s: %w, and its successor can't be used: %w", f.cert, err, failed)
		}
		return nil, fmt.Errorf("%s: %w; renew it with 'quern certs'", f.cert, err)
	}
	return f.certificate, nil
}

// verify checks what the other end shows. name is the server's, "" if we are the server.
func (h *holder) verify(state tls.ConnectionState, name string, usage x509.ExtKeyUsage) error {
	f, err := h.current()
	if err != nil {
		return err
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("the other end shows no certificate")
	}
	leaf := state.PeerCertificates[0]
	if usage == x509.ExtKeyUsageServerAuth {
		if role, ok := strings.CutSuffix(name, "."+domain); !ok || checkRole(role) != nil {
			return fmt.Errorf("a server is known by its role, such as %s, not by the name %q", ServerName(Master), name)
		}
	}
	o := x509.VerifyOptions{
		Roots: f.trusted, Intermediates: x509.NewCertPool(), CurrentTime: h.now(),
		DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage},
	}
	for _, c := range state.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(o); err != nil {
		return fmt.Errorf("the other end's certificate is refused: %w", f.explain(leaf, o.CurrentTime, err))
	}
	if _, err := roleOf(leaf); err != nil {
		return fmt.Errorf("the other end's certificate is refused: %w", err)
	}
	return nil
}

// explain says in our words why a certificate is not good.
func (f *files) explain(leaf *x509.Certificate, now time.Time, err error) error {
	if e := expired(leaf, now); e != nil {
		return fmt.Errorf("%s: %w; renew it with 'quern certs' (or is a clock wrong?)", describe(leaf), e)
	}
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	switch {
	case errors.As(err, &unknown):
		for _, c := range f.authorities {
			if e := expired(c, now); e != nil {
				return fmt.Errorf("the authority of %s: %w", f.ca, e)
			}
		}
		return fmt.Errorf("%s was signed by %q, which is no authority in %s: both ends need certificates of one cluster", describe(leaf), leaf.Issuer.CommonName, f.ca)
	case errors.As(err, &host):
		role, roleErr := roleOf(leaf)
		if roleErr != nil {
			return roleErr
		}
		wanted, _ := strings.CutSuffix(host.Host, "."+domain)
		return fmt.Errorf("it is a %s's, where a %s should be: is the address another process's?", role, wanted)
	}
	return fmt.Errorf("%s: %w", describe(leaf), err)
}

func expired(c *x509.Certificate, now time.Time) error {
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("it expired on %s", day(c.NotAfter))
	case now.Before(c.NotBefore):
		return fmt.Errorf("it is not valid before %s", day(c.NotBefore))
	}
	return nil
}

func describe(c *x509.Certificate) string { return fmt.Sprintf("certificate %q", c.Subject.CommonName) }

// roleOf returns the one role that a certificate names.
func roleOf(c *x509.Certificate) (string, error) {
	if len(c.Subject.OrganizationalUnit) != 1 {
		return "", fmt.Errorf("%s names %d roles, not one", describe(c), len(c.Subject.OrganizationalUnit))
	}
	role := c.Subject.OrganizationalUnit[0]
	if err := checkRole(role); err != nil {
		return "", fmt.Errorf("%s: %w", describe(c), err)
	}
	if err := c.VerifyHostname(ServerName(role)); err != nil {
		return "", fmt.Errorf("%s says that it is a %s's and has not that name", describe(c), role)
	}
	return role, nil
}

// ErrAnonymous is returned by Role for a caller without TLS.
var ErrAnonymous = errors.New("the caller shows no certificate")

// Role returns the role of a gRPC call's other end, which has been verified.
// ErrAnonymous where the connection has no TLS.
func Role(ctx context.Context) (string, error) {
	c, err := caller(ctx)
	if err != nil {
		return "", err
	}
	return roleOf(c)
}

// Name returns the name in the certificate of a gRPC call's other end, for people.
// "" where there is none.
func Name(ctx context.Context) string {
	c, err := caller(ctx)
	if err != nil {
		return ""
	}
	return c.Subject.CommonName
}

func caller(ctx context.Context) (*x509.Certificate, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, ErrAnonymous
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return nil, ErrAnonymous
	}
	return info.State.PeerCertificates[0], nil
}
