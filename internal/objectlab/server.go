// SPDX-License-Identifier: Apache-2.0

package objectlab

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// program is the server: S3 over a folder of files.
const program = "versitygw"

// Keys that the server takes.
const (
	AccessKey = "quern"
	SecretKey = "quern-secret"
)

// Server is a running server. Everything about it ends with the test.
type Server struct {
	Folder  string // what is in it: a folder per bucket, a file per object
	Address string // host:port
	Proxy   *Proxy // what clients talk to
}

// find returns the server's program.
func find() (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(dir, ".cache", "bin", program)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("%s is not installed", program)
		}
		dir = up
	}
}

// Start starts a server with those buckets and has the environment of the test
// point to it. Without the server's program the test is skipped.
func Start(t testing.TB, buckets ...string) *Server {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Skipf("needs an S3 server (scripts/setup-test-deps installs it): %v", err)
	}
	home := t.TempDir()
	s := &Server{Folder: filepath.Join(home, "buckets")}
	for _, b := range append([]string{""}, buckets...) {
		if err := os.Mkdir(filepath.Join(s.Folder, b), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sidecar := filepath.Join(home, "meta")
	if err := os.Mkdir(sidecar, 0o755); err != nil {
		t.Fatal(err)
	}
	// A port that is free now may be taken when the server wants it.
	for try := 1; ; try++ {
		if err = s.start(t, path, sidecar); err == nil {
			break
		}
		if try == 5 {
			t.Fatalf("start %s: %v", path, err)
		}
	}
	s.Proxy = newProxy(t, s.Address)
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": AccessKey, "AWS_SECRET_ACCESS_KEY": SecretKey, "AWS_SESSION_TOKEN": "",
		"AWS_ENDPOINT_URL": "http://" + s.Proxy.Address, "AWS_ENDPOINT_URL_S3": "",
		"AWS_REGION": "us-east-1", "AWS_PROFILE": "", "NO_PROXY": "127.0.0.1", "AWS_CA_BUNDLE": "",
	} {
		t.Setenv(name, value)
	}
	return s
}

func (s *Server) start(t testing.TB, path, sidecar string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.Address = l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	cmd := exec.Command(path, "--port", s.Address, "--access", AccessKey, "--secret", SecretKey,
		"--region", "us-east-1", "--quiet", "--keep-alive", "posix", "--sidecar", sidecar, s.Folder)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	endWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop := func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", s.Address, time.Second)
		if err == nil {
			conn.Close()
			t.Cleanup(stop)
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("it ended: %w: %s", err, said.Bytes())
		default:
		}
		if time.Now().After(deadline) {
			stop()
			return fmt.Errorf("it does not answer: %w: %s", err, said.Bytes())
		}
	}
}
