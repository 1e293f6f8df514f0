// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/quernmr/quern/internal/membership"
	"github.com/quernmr/quern/mapreduce/cluster/identity"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"
)

// Files of a folder of certificates that are ours and not package identity's.
const (
	keyringFile = "gossip.keys" // keys that gossip is encrypted with
	tokensFile  = "tokens"      // of the master: a user and a token a line
	tokenFile   = "token"       // of a client: its own
)

// daemonGroup is where help shows the flags of a master or a worker.
const daemonGroup = "daemon"

// daemonFlags are those that a master and a worker have in common.
type daemonFlags struct {
	dir, name, bind, advertise, keyring string
	port, gossipPort                    int
	join                                []string
	jsonLog, debug                      bool
}

func (f *daemonFlags) add(cmd *cobra.Command, role string, portFlag string) {
	flags := cmd.Flags()
	gossipPort := membership.WorkerPort
	if role == identity.Master {
		gossipPort = membership.Port
	}
	flags.StringVar(&f.dir, "dir", "", "`folder` for the "+role+"'s files; default: "+defaultDir(role))
	flags.StringVar(&f.name, "name", "", "`name` for people; default: this host's")
	flags.StringVar(&f.bind, "bind", "", "IP `address` to listen on; default: all, or 127.0.0.1 without certificates")
	flags.IntVar(&f.port, portFlag, f.port, "TCP port of the control plane")
	flags.IntVar(&f.gossipPort, "gossip-port", gossipPort, "port of the gossip, UDP and TCP")
	flags.StringVar(&f.advertise, "advertise", "", "IP `address` that others reach this host at; default: --bind, or the one that leads to --join")
	flags.StringVar(&f.keyring, "keyring", "", "`file` with keys that the gossip is encrypted with; default: "+keyringFile+" in the folder of the certificates")
	flags.BoolVar(&f.jsonLog, "log-json", false, "write the log as JSON objects")
	flags.BoolVar(&f.debug, "debug", false, "log more")
	for _, name := range []string{"dir", "name", "bind", portFlag, "gossip-port", "advertise", "keyring", "log-json", "debug"} {
		onlyFlag(cmd, daemonGroup, name)
	}
	_ = cmd.MarkFlagDirname("dir")
}

// onlyFlag makes a flag one that can be set on the command line alone.
func onlyFlag(cmd *cobra.Command, group, name string) {
	// SetAnnotation fails only for a flag that does not exist.
	_ = cmd.Flags().SetAnnotation(name, titleKey, []string{group})
}

// defaultDir is where a daemon's files are if nothing is said.
func defaultDir(role string) string {
	if os.Geteuid() == 0 {
		return filepath.Join("/var/lib/quern", role)
	}
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "quern", role)
}

// log makes the log of a daemon of that role.
func (f *daemonFlags) log(a *app, role string) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		// It is said by those alone that have no certificates.
		if text := attr.Value.String(); attr.Key == "error" && strings.Contains(text, "encryption is not configured") {
			return slog.String(attr.Key, text+": the cluster has certificates, give this "+role+" --certs")
		}
		return attr
	}}
	if f.debug {
		o.Level = slog.LevelDebug
	}
	if f.jsonLog {
		return slog.New(slog.NewJSONHandler(a.stderr, o))
	}
	return slog.New(slog.NewTextHandler(a.stderr, o))
}

// check completes the flags. certs is the folder of certificates, or "".
func (f *daemonFlags) check(cmd *cobra.Command, role, portFlag, certs string) error {
	if f.dir == "" {
		if f.dir = defaultDir(role); f.dir == "" {
			return usageErrorf(cmd, "name a folder for the %s's files by --dir", role)
		}
	}
	for _, p := range []struct {
		name string
		port int
	}{{portFlag, f.port}, {"gossip-port", f.gossipPort}} {
		if p.port < 0 || p.port > 65535 {
			return usageErrorf(cmd, "--%s %d: ports go from 1 to 65535; 0: any that is free", p.name, p.port)
		}
	}
	for _, p := range []struct{ name, address string }{{"bind", f.bind}, {"advertise", f.advertise}} {
		if p.address == "" {
			continue
		}
		ip, err := netip.ParseAddr(p.address)
		if err != nil {
			return usageErrorf(cmd, "--%s %q is no IP address", p.name, p.address)
		}
		if certs == "" && !ip.IsLoopback() {
			return usageErrorf(cmd, "--%s %s: without certificates (--certs) others can't be let in; leave it out, or use 127.0.0.1", p.name, p.address)
		}
	}
	if f.keyring == "" && certs != "" {
		f.keyring = filepath.Join(certs, keyringFile)
		if _, err := os.Stat(f.keyring); err != nil {
			return &usageError{fmt.Errorf("the keyring of the gossip: %w", err), "'quern certs' makes one with the certificates; --keyring names another file"}
		}
	}
	if f.bind == "" && certs == "" {
		f.bind = "127.0.0.1"
	}
	return nil
}

// daemonError is why a daemon did not start or had to end. It is about files and ports of its own, and
// no inputs or outputs of a job.
type daemonError struct {
	err  error
	hint string
}

func (e *daemonError) Error() string { return e.err.Error() }
func (e *daemonError) Unwrap() error { return e.err }

// daemonFailed makes a daemonError of an error that is none yet; nil stays nil.
func daemonFailed(err error) error {
	var known *daemonError
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &daemonError{err: err}
}

// listen listens for calls. A port that is not asked for by name may be another one if it is taken.
func (f *daemonFlags) listen(fixed bool) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(f.bind, strconv.Itoa(f.port)))
	if err != nil && !fixed && errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", net.JoinHostPort(f.bind, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("the control plane: %w", err)
	}
	return l, nil
}

// gossip is what membership is to do. Without certificates a port that is taken is replaced by another one.
func (f *daemonFlags) gossip(c membership.Config, fixed bool) (*membership.Membership, error) {
	c.Name, c.Bind, c.Advertise, c.Join, c.KeyringFile = f.name, f.bind, f.advertise, f.join, f.keyring
	c.Port = f.gossipPort
	if c.Port == 0 {
		c.Port = -1
	}
	m, err := membership.Start(c)
	if err != nil && !fixed && strings.Contains(err.Error(), "address already in use") {
		c.Port = -1
		return membership.Start(c)
	}
	return m, err
}

// towards returns this host's address on the way to another one.
func towards(host string) (netip.Addr, error) {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	conn, err := net.Dial("udp", net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(membership.Port)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	address, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return address.Addr().Unmap(), err
}

// hostOf returns where a worker's peers reach it.
func (f *daemonFlags) hostOf() (string, error) {
	for _, known := range []string{f.advertise, f.bind} {
		if ip, err := netip.ParseAddr(known); err == nil && !ip.IsUnspecified() {
			return known, nil
		}
	}
	var failed error
	for _, seed := range f.join {
		ip, err := towards(seed)
		if err == nil {
			return ip.String(), nil
		}
		failed = errors.Join(failed, err)
	}
	return "", fmt.Errorf("this host's address is not known, name it by --advertise: %w", failed)
}

// authorize lets callers have the role that their certificate names.
func authorize(ctx context.Context, wanted string) error {
	role, err := identity.Role(ctx)
	if err != nil {
		return err
	}
	if role != wanted {
		return fmt.Errorf("the certificate is a %s's, and a %s's is wanted", role, wanted)
	}
	return nil
}

// credentialsOf reads the certificates of a role; all are nil without a folder.
func credentialsOf(certs, role string) (server, toMaster, toWorker credentials.TransportCredentials, err error) {
	if certs == "" {
		return nil, nil, nil, nil
	}
	s, c, err := identity.Load(certs, role)
	if err != nil {
		return nil, nil, nil, &usageError{err, "'quern certs --help' says how certificates are made"}
	}
	return credentials.NewTLS(s), credentials.NewTLS(identity.To(c, identity.Master)), credentials.NewTLS(identity.To(c, identity.Worker)), nil
}

// readTokens reads the file of a master's tokens: a user's name and a token a line. Empty
// lines and those that begin with # do not count.
func readTokens(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	tokens := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0, strings.HasPrefix(fields[0], "#"):
			continue
		case len(fields) != 2:
			return nil, fmt.Errorf("%s:%d: a user's name and a token are wanted, with a space between them", path, n)
		case len(fields[1]) < 8:
			return nil, fmt.Errorf("%s:%d: the token of %s has less than 8 characters", path, n, fields[0])
		case tokens[fields[0]] != "":
			return nil, fmt.Errorf("%s:%d: %s has a token already", path, n, fields[0])
		}
		tokens[fields[0]] = fields[1]
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%s: there is no token in it", path)
	}
	return tokens, nil
}

// ownToken reads a client's token from the folder of its certificates; "" if there is none.
func ownToken(certs string) (string, error) {
	text, err := os.ReadFile(filepath.Join(certs, tokenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
