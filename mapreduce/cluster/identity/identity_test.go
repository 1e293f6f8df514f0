// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func create(t *testing.T, o Options) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "certs")
	if err := Create(dir, o); err != nil {
		t.Fatal(err)
	}
	return dir
}

func load(t *testing.T, dir, role string) (server, client *tls.Config) {
	t.Helper()
	server, client, err := Load(dir, role)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// handshake joins a client and a server and returns what each says.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	s, c := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1})
		}
		a.Close()
		done <- err
	}()
	clientErr = c.Handshake()
	if clientErr == nil {
		// With TLS 1.3 the client learns only here that it was refused.
		_, clientErr = c.Read(make([]byte, 1))
	}
	b.Close()
	return <-done, clientErr
}

// TestRoles has every role meet every server.
func TestRoles(t *testing.T) {
	dir := create(t, Options{})
	for _, at := range []string{Master, Worker} {
		server, _ := load(t, dir, at)
		for _, from := range Roles() {
			_, client := load(t, dir, from)
			for _, expected := range Roles() {
				s, c := handshake(t, server, To(client, expected))
				if expected == at {
					if s != nil || c != nil {
						t.Errorf("%s to %s: %v, %v", from, at, s, c)
					}
				} else if c == nil || !strings.Contains(c.Error(), "it is a "+at+"'s, where a "+expected+" should be") {
					t.Errorf("%s that expects a %s at a %s: %v", from, expected, at, c)
				}
			}
		}
	}
	server, client := load(t, dir, Client)
	if server != nil {
		t.Error("a client may serve")
	}
	// It can't by other means either.
	master, _ := load(t, dir, Master)
	stolen := master.Clone()
	stolen.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return client.GetClientCertificate(nil) }
	if _, err := handshake(t, stolen, To(client, Client)); err == nil {
		t.Error("a client's certificate serves")
	}
	for _, name := range []string{"", "10.0.0.1", "localhost", "elsewhere." + domain} {
		other := client.Clone()
		other.ServerName = name
		if _, err := handshake(t, master, other); err == nil || !strings.Contains(err.Error(), "known by its role") {
			t.Errorf("server name %q: %v", name, err)
		}
	}
	// Without a certificate nobody gets in.
	if s, c := handshake(t, master, &tls.Config{InsecureSkipVerify: true}); s == nil || c == nil {
		t.Error("a client without a certificate was let in")
	}
	old := client.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if s, c := handshake(t, master, old); s == nil || c == nil {
		t.Error("a client with TLS 1.2 was let in")
	}
}

// TestOtherAuthority keeps clusters apart.
func TestOtherAuthority(t *testing.T) {
	ours, theirs := create(t, Options{}), create(t, Options{})
	server, _ := load(t, ours, Master)
	_, client := load(t, theirs, Worker)
	if _, err := handshake(t, server, client); err == nil || !strings.Contains(err.Error(), "no authority in "+theirs) {
		t.Errorf("the client says %v", err)
	}
	// The server refuses as well, whatever the client thinks.
	blind := client.Clone()
	blind.VerifyConnection = nil
	if err, _ := handshake(t, server, blind); err == nil || !strings.Contains(err.Error(), "no authority in "+ours) {
		t.Errorf("the server says %v", err)
	}
	// With both authorities in ca.pem, which is how one follows another, it goes.
	a, err := os.ReadFile(filepath.Join(ours, CAFile))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(theirs, CAFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{ours, theirs} {
		if err := replaceFile(filepath.Join(dir, CAFile), 0o644, append(append([]byte{}, a...), b...)); err != nil {
			t.Fatal(err)
		}
	}
	if s, c := handshake(t, server, client); s != nil || c != nil {
		t.Errorf("both authorities: %v, %v", s, c)
	}
	if _, err := Issue(theirs, Worker, "", Options{}); err != nil {
		t.Errorf("issue by the second authority of a file: %v", err)
	}
	if s, c := handshake(t, server, client); s != nil || c != nil {
		t.Errorf("issued by the second: %v, %v", s, c)
	}
}

// TestRenewed replaces certificates under a running server and client.
func TestRenewed(t *testing.T) {
	dir := create(t, Options{})
	server, _ := load(t, dir, Master)
	_, client := load(t, dir, Worker)
	shown := func() (string, string) {
		t.Helper()
		c, err := server.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		w, err := client.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.SerialNumber.String(), w.Leaf.SerialNumber.String()
	}
	m1, w1 := shown()
	if m2, w2 := shown(); m1 != m2 || w1 != w2 {
		t.Error("they change by themselves")
	}
	for _, role := range []string{Master, Worker} {
		if _, err := Issue(dir, role, "", Options{}); err != nil {
			t.Fatal(err)
		}
	}
	m3, w3 := shown()
	if m3 == m1 || w3 == w1 {
		t.Error("new certificates are not taken up")
	}
	// A damaged file, one without its key, and none at all leave what there was.
	path := filepath.Join(dir, CertFile(Master))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"", "nonsense", string(text[:len(text)/2])} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, _ := shown(); m != m3 {
			t.Errorf("after %.20q another certificate", content)
		}
	}
	if err := os.Remove(filepath.Join(dir, KeyFile(Master))); err != nil {
		t.Fatal(err)
	}
	if m, _ := shown(); m != m3 {
		t.Error("another certificate")
	}
	if s, c := handshake(t, server, client); s != nil || c != nil {
		t.Errorf("%v, %v", s, c)
	}
}

// TestExpired lets time pass.
func TestExpired(t *testing.T) {
	now := time.Now()
	ended := create(t, Options{From: now.Add(-2 * time.Hour), Validity: time.Hour, CAValidity: 24 * time.Hour})
	future := create(t, Options{From: now.Add(time.Hour)})
	for dir, says := range map[string]string{ended: "expired on", future: "not valid before"} {
		if _, _, err := Load(dir, Worker); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), CertFile(Worker)) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	// One that expires while the process runs is not shown any more, and is refused by others.
	if _, err := Issue(ended, Master, "", Options{}); err != nil {
		t.Fatal(err)
	}
	server, client := load(t, ended, Master)
	old := &holder{dir: ended, role: Worker, now: func() time.Time { return now.Add(-90 * time.Minute) }}
	shown, err := old.own()
	if err != nil {
		t.Fatal(err)
	}
	old.now = time.Now
	if _, err := old.own(); err == nil || !strings.Contains(err.Error(), "renew it") {
		t.Errorf("an expired certificate is shown: %v", err)
	}
	client = client.Clone()
	client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil }
	if err, _ := handshake(t, server, client); err == nil || !strings.Contains(err.Error(), "expired on") {
		t.Errorf("the server says %v", err)
	}
	// No certificate outlives its authority, and an authority that has ended signs nothing.
	short := create(t, Options{Validity: 48 * time.Hour, CAValidity: 24 * time.Hour})
	c, err := readCertificates(filepath.Join(short, CertFile(Worker)))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := readCertificates(filepath.Join(short, CAFile))
	if err != nil {
		t.Fatal(err)
	}
	if c[0].NotAfter.After(ca[0].NotAfter) {
		t.Errorf("the certificate ends %v, its authority %v", c[0].NotAfter, ca[0].NotAfter)
	}
	if _, err := Issue(short, Worker, "", Options{From: now.Add(72 * time.Hour)}); err == nil || !strings.Contains(err.Error(), "make a new one") {
		t.Errorf("an authority that has ended: %v", err)
	}
	if err := Create(filepath.Join(t.TempDir(), "x"), Options{Validity: -1}); err == nil {
		t.Error("a validity below 0")
	}
}

// TestLoadErrors says what is wrong with a folder.
func TestLoadErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(dir string) error
		says  []string
	}{
		{"no authority", func(dir string) error { return os.Remove(filepath.Join(dir, CAFile)) }, []string{CAFile, "quern certs"}},
		{"no certificate", func(dir string) error { return os.Remove(filepath.Join(dir, "worker.pem")) }, []string{"worker.pem", "quern certs"}},
		{"no key", func(dir string) error { return os.Remove(filepath.Join(dir, "worker-key.pem")) }, []string{"worker-key.pem", "private key", "quern certs"}},
		{"another's key", func(dir string) error {
			return os.Rename(filepath.Join(dir, "client-key.pem"), filepath.Join(dir, "worker-key.pem"))
		}, []string{"worker-key.pem", "is not the key of", "worker.pem"}},
		{"another role", func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "client-key.pem"), filepath.Join(dir, "worker-key.pem")),
				os.Rename(filepath.Join(dir, "client.pem"), filepath.Join(dir, "worker.pem")))
		}, []string{"worker.pem", "not the certificate of a worker", "a client's"}},
		{"another authority", func(dir string) error {
			other := filepath.Join(dir, "other")
			return errors.Join(Create(other, Options{}), os.Rename(filepath.Join(other, CAFile), filepath.Join(dir, CAFile)))
		}, []string{"worker.pem", "was not signed by an authority in", CAFile}},
		{"damaged certificate", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "worker.pem"), []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), 0o600)
		}, []string{"worker.pem"}},
		{"empty key", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "worker-key.pem"), nil, 0o600)
		}, []string{"worker-key.pem", "no key"}},
		{"truncated authorities", func(dir string) error {
			text, err := os.ReadFile(filepath.Join(dir, CAFile))
			return errors.Join(err, os.WriteFile(filepath.Join(dir, CAFile), append(text, text[:len(text)/2]...), 0o600))
		}, []string{CAFile, "damaged"}},
		{"a leaf as authority", func(dir string) error {
			text, err := os.ReadFile(filepath.Join(dir, "worker.pem"))
			return errors.Join(err, os.WriteFile(filepath.Join(dir, CAFile), text, 0o600))
		}, []string{CAFile, "no authority"}},
	} {
		dir := create(t, Options{})
		if err := c.spoil(dir); err != nil {
			t.Fatal(err)
		}
		_, _, err := Load(dir, Worker)
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not say %q", c.name, err, s)
			}
		}
	}
	dir := create(t, Options{})
	if err := os.Remove(filepath.Join(dir, KeyFile(Client))); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(dir, Client); err == nil || !strings.Contains(err.Error(), "copy client-key.pem of the role client") {
		t.Errorf("no key: %v", err)
	}
	if _, _, err := Load(create(t, Options{}), "king"); err == nil || !strings.Contains(err.Error(), "master, worker, client") {
		t.Errorf("a role that is none: %v", err)
	}
}

// TestIssue makes a folder for one process.
func TestIssue(t *testing.T) {
	dir := create(t, Options{})
	folder, err := Issue(dir, Worker, "rack1.host-7", Options{Validity: time.Hour})
	if err != nil || folder != filepath.Join(dir, "rack1.host-7") {
		t.Fatalf("%q, %v", folder, err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if strings.Join(names, " ") != "ca.pem worker-key.pem worker.pem" {
		t.Errorf("%q", names)
	}
	server, _ := load(t, dir, Master)
	_, client := load(t, folder, Worker)
	if s, c := handshake(t, server, client); s != nil || c != nil {
		t.Errorf("%v, %v", s, c)
	}
	for _, name := range []string{"..", "a/b", ".x", "-x", "a b", strings.Repeat("x", 64)} {
		if _, err := Issue(dir, Worker, name, Options{}); err == nil {
			t.Errorf("%q is taken for a name", name)
		}
	}
	if _, err := Issue(dir, "king", "", Options{}); err == nil {
		t.Error("a role that is none")
	}
	if _, err := Issue(folder, Worker, "", Options{}); err == nil || !strings.Contains(err.Error(), CAKeyFile) {
		t.Errorf("without the authority's key: %v", err)
	}
	if err := Create(dir, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("a second authority: %v", err)
	}
}

// TestFiles looks at what was written.
func TestFiles(t *testing.T) {
	dir := create(t, Options{Validity: 48 * time.Hour})
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 8 {
		t.Errorf("%d files, want 8", len(entries))
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		secret := strings.HasSuffix(e.Name(), "-key.pem")
		if secret != bytes.Contains(text, []byte("PRIVATE KEY")) {
			t.Errorf("%s holds the wrong thing", e.Name())
		}
		if secret && runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	for _, role := range Roles() {
		c, err := readCertificates(filepath.Join(dir, CertFile(role)))
		if err != nil {
			t.Fatal(err)
		}
		left := time.Until(c[0].NotAfter)
		if len(c[0].DNSNames) != 1 || c[0].DNSNames[0] != role+".quern.internal" || len(c[0].IPAddresses) != 0 ||
			c[0].Subject.OrganizationalUnit[0] != role || left < 47*time.Hour || left > 48*time.Hour || c[0].IsCA {
			t.Errorf("%s: %v %v %v", role, c[0].DNSNames, c[0].Subject, c[0].NotAfter)
		}
	}
	// The authority can sign nothing but names of ours.
	authority, key, err := readAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	own, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	foreign := &x509.Certificate{SerialNumber: authority.SerialNumber, DNSNames: []string{"example.org"}, NotAfter: authority.NotAfter}
	der, err := x509.CreateCertificate(nil, foreign, authority, &own.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	if _, err := c.Verify(x509.VerifyOptions{Roots: pool, DNSName: "example.org", KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("the authority vouches for example.org")
	}
}

// whoami is a service that says who calls it.
var whoami = grpc.ServiceDesc{
	ServiceName: "test.WhoAmI", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Say", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		if err := decode(&emptypb.Empty{}); err != nil {
			return nil, err
		}
		role, err := Role(ctx)
		if errors.Is(err, ErrAnonymous) {
			return wrapperspb.String("anonymous"), nil
		}
		if err != nil {
			return nil, err
		}
		return wrapperspb.String(role + " " + Name(ctx)), nil
	}}},
}

func serve(t *testing.T, o ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(o...)
	s.RegisterService(&whoami, nil)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l.Addr().String()
}

func ask(t *testing.T, address string, c credentials.TransportCredentials) (string, error) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var reply wrapperspb.StringValue
	err = conn.Invoke(ctx, "/test.WhoAmI/Say", &emptypb.Empty{}, &reply)
	return reply.Value, err
}

// TestRole asks a gRPC server who it takes us for.
func TestRole(t *testing.T) {
	dir := create(t, Options{})
	server, _ := load(t, dir, Master)
	address := serve(t, grpc.Creds(credentials.NewTLS(server)))
	for _, role := range Roles() {
		_, client := load(t, dir, role)
		if got, err := ask(t, address, credentials.NewTLS(client)); err != nil || got != role+" "+role {
			t.Errorf("%s is %q, %v", role, got, err)
		}
	}
	folder, err := Issue(dir, Worker, "host7", Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, client := load(t, folder, Worker)
	if got, err := ask(t, address, credentials.NewTLS(client)); err != nil || got != "worker host7" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := ask(t, address, credentials.NewTLS(To(client, Worker))); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "it is a master's") {
		t.Errorf("a master taken for a worker: %v", err)
	}
	if _, err := ask(t, address, insecure.NewCredentials()); status.Code(err) != codes.Unavailable {
		t.Errorf("without TLS: %v", err)
	}
	if got, err := ask(t, serve(t), insecure.NewCredentials()); err != nil || got != "anonymous" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Role(context.Background()); !errors.Is(err, ErrAnonymous) {
		t.Errorf("outside of a call: %v", err)
	}
}

// TestRoleOf refuses certificates that name no role, or more than one.
func TestRoleOf(t *testing.T) {
	for _, c := range []struct {
		units []string
		ok    bool
	}{{nil, false}, {[]string{Worker}, true}, {[]string{Master}, false}, {[]string{Worker, Master}, false}, {[]string{"king"}, false}} {
		leaf := &x509.Certificate{DNSNames: []string{ServerName(Worker)}}
		leaf.Subject.OrganizationalUnit = c.units
		if _, err := roleOf(leaf); (err == nil) != c.ok {
			t.Errorf("%q: %v", c.units, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	dir := f.TempDir()
	if err := Create(filepath.Join(dir, "c"), Options{}); err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{CAFile, CertFile(Worker), KeyFile(Worker)} {
		text, err := os.ReadFile(filepath.Join(dir, "c", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if all, err := parseCertificates(text); err == nil && len(all) == 0 {
			t.Error("neither certificates nor an error")
		}
		if k, err := parseKey(text); err == nil && k == nil {
			t.Error("neither a key nor an error")
		}
	})
}
