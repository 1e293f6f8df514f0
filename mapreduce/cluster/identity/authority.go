// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// The roles.
const (
	Master = "master"
	Worker = "worker"
	Client = "client" // who submits jobs; shows a token as well
)

// Roles returns all roles.
func Roles() []string { return []string{Master, Worker, Client} }

// domain is what the names of roles are in.
const domain = "quern.internal"

// ServerName returns the DNS name that certificates of a role hold.
func ServerName(role string) string { return role + "." + domain }

// Files of a folder of certificates, beside ROLE.pem and ROLE-key.pem.
const (
	CAFile    = "ca.pem"     // authorities that are trusted; may hold several
	CAKeyFile = "ca-key.pem" // needed by Issue alone: keep it off the hosts
)

// CertFile and KeyFile name the files of a role.
func CertFile(role string) string { return role + ".pem" }

// KeyFile names the file of a role's private key.
func KeyFile(role string) string { return role + "-key.pem" }

// Validity of certificates if nothing is said.
const (
	DefaultValidity   = 365 * 24 * time.Hour
	DefaultCAValidity = 10 * DefaultValidity
)

// slack is how much earlier certificates are valid than they are made, since clocks differ.
const slack = time.Hour

// Options say how long certificates are valid. The zero value is of use.
type Options struct {
	Validity   time.Duration // of those of roles; 0: DefaultValidity
	CAValidity time.Duration // of the authority; 0: DefaultCAValidity
	From       time.Time     // when validity begins; zero: an hour ago
}

func (o Options) withDefaults() (Options, error) {
	if o.Validity < 0 || o.CAValidity < 0 {
		return o, fmt.Errorf("a validity of %v: it must be more than 0", min(o.Validity, o.CAValidity))
	}
	if o.Validity == 0 {
		o.Validity = DefaultValidity
	}
	if o.CAValidity == 0 {
		o.CAValidity = DefaultCAValidity
	}
	if o.From.IsZero() {
		o.From = time.Now().Add(-slack)
		o.Validity += slack
		o.CAValidity += slack
	}
	return o, nil
}

// ErrExists is wrapped by the error of Create where there is an authority already.
var ErrExists = errors.New("there is a certificate authority already")

// Create makes a folder with a new authority and a certificate for each role. The
// folder may exist, but not hold an authority: ErrExists. Private keys can be read by
// their owner alone (mode 0600).
func Create(dir string, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the certificates: %w", err)
	}
	for _, name := range []string{CAKeyFile, CAFile} {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%w: %s; give another folder, or remove it with all that it has signed", ErrExists, path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for a certificate authority: %w", err)
		}
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// The serial number is in the name so that two authorities can be told apart.
		Subject:   pkix.Name{Organization: []string{"Quern"}, CommonName: fmt.Sprintf("Quern cluster %x", serial.Bytes()[:4])},
		NotBefore: o.From, NotAfter: o.From.Add(o.CAValidity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		// Whoever gets hold of the key can't pose as anything else.
		PermittedDNSDomains: []string{domain}, PermittedDNSDomainsCritical: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return fmt.Errorf("make a certificate authority: %w", err)
	}
	if err := writeKey(filepath.Join(dir, CAKeyFile), key); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, CAFile), 0o644, "CERTIFICATE", der); err != nil {
		return err
	}
	for _, role := range Roles() {
		if _, err := Issue(dir, role, "", o); err != nil {
			return err
		}
	}
	return nil
}

var goodName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// Issue makes a certificate for a role with the authority of a folder, which must hold
// its key. With a name, it is written to the folder of that name in dir, together with a
// copy of the authority's certificate: all that one process needs. Without, it takes the
// place of the folder's own one of that role, and running processes take it up. Issue
// returns the folder that it has written to.
func Issue(dir, role, name string, o Options) (string, error) {
	if err := checkRole(role); err != nil {
		return "", err
	}
	o, err := o.withDefaults()
	if err != nil {
		return "", err
	}
	if name != "" && !goodName.MatchString(name) {
		return "", fmt.Errorf("%q is no name for a certificate: letters, digits, dots, dashes and underscores, at most 63", name)
	}
	authority, key, err := readAuthority(dir)
	if err != nil {
		return "", err
	}
	end := o.From.Add(o.Validity)
	if end.After(authority.NotAfter) {
		end = authority.NotAfter
	}
	if !end.After(o.From) {
		return "", fmt.Errorf("the certificate authority in %s ends on %s: make a new one", dir, day(authority.NotAfter))
	}
	own, err := newKey()
	if err != nil {
		return "", err
	}
	serial, err := newSerial()
	if err != nil {
		return "", err
	}
	common := name
	if common == "" {
		common = role
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"Quern"}, OrganizationalUnit: []string{role}, CommonName: common},
		NotBefore:    o.From, NotAfter: end,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           usages(role),
		DNSNames:              []string{ServerName(role)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, &own.PublicKey, key)
	if err != nil {
		return "", fmt.Errorf("sign a certificate: %w", err)
	}
	folder := dir
	if name != "" {
		folder = filepath.Join(dir, name)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return "", fmt.Errorf("make the folder of the certificate: %w", err)
		}
		trusted, err := os.ReadFile(filepath.Join(dir, CAFile))
		if err != nil {
			return "", fmt.Errorf("read the authority's certificate: %w", err)
		}
		if err := replaceFile(filepath.Join(folder, CAFile), 0o644, trusted); err != nil {
			return "", err
		}
	}
	// Whoever reads in between sees a key that does not fit, and keeps what it has.
	if err := writeKey(filepath.Join(folder, KeyFile(role)), own); err != nil {
		return "", err
	}
	return folder, writeFile(filepath.Join(folder, CertFile(role)), 0o644, "CERTIFICATE", der)
}

// usages says at which ends of a connection a role may be. Workers serve each other.
func usages(role string) []x509.ExtKeyUsage {
	if role == Client {
		return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
}

func checkRole(role string) error {
	for _, r := range Roles() {
		if r == role {
			return nil
		}
	}
	return fmt.Errorf("%q is no role: there are %s", role, strings.Join(Roles(), ", "))
}

func readAuthority(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	trusted, err := readCertificates(filepath.Join(dir, CAFile))
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, CAKeyFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read the key of the certificate authority, without which nothing can be signed: %w", err)
	}
	key, err := parseKey(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, c := range trusted {
		if public, ok := c.PublicKey.(*ecdsa.PublicKey); ok && public.Equal(&key.PublicKey) {
			return c, key, nil
		}
	}
	return nil, nil, fmt.Errorf("%s is not the key of any authority in %s", path, filepath.Join(dir, CAFile))
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// newSerial returns 127 random bits, the first of which is set: 16 bytes always.
func newSerial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:]), nil
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	return writeFile(path, 0o600, "PRIVATE KEY", der)
}

func writeFile(path string, mode fs.FileMode, kind string, der []byte) error {
	return replaceFile(path, mode, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// replaceFile writes a file beside the one that is there, and puts it in its place.
func replaceFile(path string, mode fs.FileMode, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
		}
	}()
	if _, err = f.Write(content); err == nil {
		if err = f.Chmod(mode); err == nil {
			err = f.Sync()
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func readCertificates(path string) ([]*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	certificates, err := parseCertificates(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return certificates, nil
}

func parseCertificates(text []byte) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	if len(bytes.TrimSpace(text)) > 0 && bytes.Contains(text, []byte("-----BEGIN")) {
		return nil, errors.New("it is damaged behind its last certificate")
	}
	return all, nil
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("there is no key in it")
	}
	if block.Type == "EC PRIVATE KEY" {
		return x509.ParseECPrivateKey(block.Bytes)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	k, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("it is no ECDSA key")
	}
	return k, nil
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
