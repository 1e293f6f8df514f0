// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick is the pace of the tests' gossip.
const quick = 100 * time.Millisecond

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// needAddresses skips the test where 127.0.0.2 and on are no addresses of this host.
func needAddresses(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skipf("this system has no loopback addresses but 127.0.0.1: %v", err)
	}
	l.Close()
}

func worker(name string) Config {
	return Config{Name: name, Port: -1, Probe: quick, Rejoin: 3 * quick, KeyCheck: quick / 4, Meta: Meta{
		Role: Worker, Worker: "id-" + name, Name: name, Control: ":7120", Slots: 2, Memory: 1 << 30, Kernel: "folds",
	}}
}

func master(name string) Config {
	c := worker(name)
	c.Meta = Meta{Role: Master, Name: name, Control: ":7119"}
	return c
}

func start(t *testing.T, c Config) *Membership {
	t.Helper()
	m, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func names(m *Membership) string {
	var all []string
	for _, n := range m.Members() {
		all = append(all, n.Meta.Name)
	}
	return strings.Join(all, " ")
}

func keyFile(t *testing.T, keys ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keyring")
	writeKeys(t, path, keys...)
	return path
}

// writeKeys replaces a keyring as one should: at once.
func writeKeys(t *testing.T, path string, keys ...string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte("# keys of the test\n"+strings.Join(keys, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func newKey(t *testing.T) string {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// told records what Suspect is called with.
type told struct {
	mu  sync.Mutex
	all []string
}

func (s *told) suspect(id string, suspect bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, fmt.Sprintf("%s %v", id, suspect))
}

func (s *told) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.all, text)
}

func (s *told) last(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range slices.Backward(s.all) {
		if rest, ok := strings.CutPrefix(text, id+" "); ok {
			return rest
		}
	}
	return ""
}

// TestFind has workers find a master through each other, and the master hear of them.
func TestFind(t *testing.T) {
	var s told
	joined := make(chan struct{}, 100)
	c := master("m")
	c.Suspect = s.suspect
	m := start(t, c)
	host, port, err := net.SplitHostPort(m.Address())
	if err != nil || host != "127.0.0.1" {
		t.Fatalf("%s, %v", m.Address(), err)
	}
	c = worker("w1")
	c.Join = []string{"127.0.0.1:" + port}
	w1 := start(t, c)
	c = worker("w2") // which is not told of the master
	c.Join = []string{w1.Address()}
	c.Joined = func() { joined <- struct{}{} }
	w2 := start(t, c)
	for _, x := range []*Membership{m, w1, w2} {
		eventually(t, "all are there", func() bool { return names(x) == "m w1 w2" })
	}
	for _, x := range []*Membership{w1, w2} {
		if got := x.Masters(); len(got) != 1 || got[0] != "127.0.0.1:7119" {
			t.Errorf("masters %q", got)
		}
	}
	<-joined
	got := m.Members()[1]
	want := worker("w1").Meta
	if got.Meta != want || got.Address != w1.Address() || got.ID != w1.ID() || got.Control() != "127.0.0.1:7120" {
		t.Errorf("%+v, want %+v at %s", got, want, w1.Address())
	}
	eventually(t, "the master is told of both", func() bool { return s.has("id-w1 false") && s.has("id-w2 false") })

	// One that says good-bye is gone at once; one that is killed, when it has not answered for a while.
	if err := w1.Leave(); err != nil {
		t.Error(err)
	}
	eventually(t, "w1 is gone", func() bool { return names(m) == "m w2" && names(w2) == "m w2" && s.last("id-w1") == "true" })
	if err := w2.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "w2 is gone", func() bool { return names(m) == "m" && s.last("id-w2") == "true" })
	if err := w2.Leave(); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// TestSeedsLater starts a worker before anybody is there to be found.
func TestSeedsLater(t *testing.T) {
	needAddresses(t)
	c := worker("w")
	c.Bind, c.Port = "127.0.0.3", freePort(t)
	c.Join = []string{net.JoinHostPort("127.0.0.2", strconv.Itoa(c.Port))}
	w := start(t, c)
	time.Sleep(2 * quick) // the first question goes unanswered
	if names(w) != "w" {
		t.Fatal(names(w))
	}
	d := master("m")
	d.Bind, d.Port = "127.0.0.2", c.Port
	m := start(t, d)
	eventually(t, "they find each other", func() bool { return names(w) == "m w" && names(m) == "m w" })
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestComeBack has a worker return at another address under its name, and one at the
// same address as another process. Neither is kept out by what is remembered.
func TestComeBack(t *testing.T) {
	needAddresses(t)
	var s told
	port := freePort(t)
	c := master("m")
	c.Bind, c.Port, c.Suspect = "127.0.0.2", port, s.suspect
	m := start(t, c)
	at := func(address, id string) *Membership {
		c := worker("w")
		c.Meta.Worker = id
		c.Bind, c.Port, c.Join = address, port, []string{net.JoinHostPort("127.0.0.2", strconv.Itoa(port))}
		return start(t, c)
	}
	first := at("127.0.0.3", "one")
	eventually(t, "w is there", func() bool { return names(m) == "m w" })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := at("127.0.0.4", "two") // at once: the other one still counts as there
	eventually(t, "w at its new address", func() bool {
		return slices.ContainsFunc(m.Members(), func(x Member) bool { return x.Address == second.Address() })
	})
	eventually(t, "the first is gone", func() bool { return names(m) == "m w" && s.last("one") == "true" })
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	at("127.0.0.4", "three")
	eventually(t, "the third is there, the second gone", func() bool {
		return names(m) == "m w" && m.Members()[1].Meta.Worker == "three" && s.last("two") == "true"
	})
	if s.last("three") != "false" {
		t.Errorf("%q", s.all)
	}
	// The same process back after a silence is the same worker: it is told again.
	fourth := at("127.0.0.5", "four")
	eventually(t, "the fourth", func() bool { return s.last("four") == "false" })
	if err := fourth.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the fourth is suspected", func() bool { return s.last("four") == "true" })
	at("127.0.0.5", "four")
	eventually(t, "the fourth is back", func() bool { return s.last("four") == "false" })
}

// TestMassRestart kills all members at once and starts them anew at the same addresses.
func TestMassRestart(t *testing.T) {
	needAddresses(t)
	port := freePort(t)
	const n = 5
	keys := keyFile(t, newKey(t))
	up := func() (all []*Membership) {
		for i := range n {
			c := worker(fmt.Sprintf("w%d", i))
			if i == 0 {
				c = master("w0")
			}
			c.KeyringFile = keys
			c.Bind, c.Port = fmt.Sprintf("127.0.0.%d", 10+i), port
			c.Join = []string{net.JoinHostPort("127.0.0.10", strconv.Itoa(port)), net.JoinHostPort("127.0.0.11", strconv.Itoa(port))}
			all = append(all, start(t, c))
		}
		return all
	}
	complete := func(all []*Membership) {
		t.Helper()
		for _, m := range all {
			eventually(t, "all are there, each once", func() bool { return names(m) == "w0 w1 w2 w3 w4" })
		}
	}
	first := up()
	complete(first)
	for _, m := range first {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	second := up()
	complete(second)
	for _, m := range second {
		for _, x := range m.Members() {
			if slices.ContainsFunc(first, func(old *Membership) bool { return old.ID() == x.ID }) {
				t.Errorf("%s is of the time before", x.ID)
			}
		}
	}
	// One half is started anew while the other one runs.
	for i, m := range second[:3] {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		c := worker(fmt.Sprintf("w%d", i))
		c.KeyringFile, c.Bind, c.Port = keys, fmt.Sprintf("127.0.0.%d", 10+i), port
		c.Join = []string{net.JoinHostPort("127.0.0.10", strconv.Itoa(port)), net.JoinHostPort("127.0.0.14", strconv.Itoa(port))}
		second[i] = start(t, c)
	}
	complete(second)
}

// TestRotation changes the key of a running cluster in the three steps that docs describe,
// on one member after the other. Nobody is ever suspected.
func TestRotation(t *testing.T) {
	oldKey, fresh := newKey(t), newKey(t)
	const n = 3
	var s told
	var all []*Membership
	var files []string
	var seed string
	for i := range n {
		c := worker(fmt.Sprintf("w%d", i))
		c.KeyringFile = keyFile(t, oldKey)
		c.Bind = "127.0.0.1"
		c.Suspect = s.suspect
		if i > 0 {
			c.Join = []string{seed}
		}
		m := start(t, c)
		if i == 0 {
			seed = m.Address()
		}
		all, files = append(all, m), append(files, c.KeyringFile)
	}
	complete := func(more ...*Membership) {
		t.Helper()
		for _, m := range append(slices.Clone(all), more...) {
			eventually(t, "all are there", func() bool { return len(m.Members()) == n+len(more) })
		}
	}
	complete()
	ring := func(m *Membership) string {
		var keys []string
		for _, k := range m.keyring.ring.GetKeys() {
			switch enc := base64Of(k); enc {
			case oldKey:
				keys = append(keys, "old")
			case fresh:
				keys = append(keys, "new")
			default:
				keys = append(keys, enc)
			}
		}
		return strings.Join(keys, " ")
	}
	for step, keys := range [][]string{{oldKey, fresh}, {fresh, oldKey}, {fresh}} {
		want := []string{"old new", "new old", "new"}[step]
		for i, m := range all {
			writeKeys(t, files[i], keys...)
			eventually(t, "the keys are "+want, func() bool { return ring(m) == want })
			// Between the members the step is taken by some and not by others.
			for range 3 {
				for _, a := range all {
					if _, err := a.list.Join([]string{all[(i+1)%n].Address()}); err != nil {
						t.Errorf("step %d, member %d: %v", step+1, i, err)
					}
				}
			}
		}
	}
	c := worker("late")
	c.KeyringFile, c.Join = keyFile(t, fresh), []string{seed}
	c.Bind = "127.0.0.1"
	complete(start(t, c))
	c = worker("stranger")
	c.KeyringFile, c.Join = keyFile(t, oldKey), []string{seed}
	c.Bind = "127.0.0.1"
	stranger := start(t, c)
	if _, err := stranger.list.Join([]string{seed}); err == nil {
		t.Error("one with the old key is let in")
	}
	for i := range n {
		if s.has(fmt.Sprintf("id-w%d true", i)) {
			t.Errorf("w%d was suspected", i)
		}
	}
	// What can't be read changes nothing.
	if err := os.WriteFile(files[0], []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * all[0].config.KeyCheck)
	if got := ring(all[0]); got != "new" {
		t.Errorf("keys %s", got)
	}
}

// TestAlone keeps members without a keyring to themselves.
func TestAlone(t *testing.T) {
	for _, c := range []struct{ bind, advertise string }{{"0.0.0.0", ""}, {"192.0.2.1", ""}, {"::", ""}, {"", "192.0.2.1"}, {"127.0.0.1", "192.0.2.1"}} {
		w := worker("w")
		w.Bind, w.Advertise = c.bind, c.advertise
		m, err := Start(w)
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "keyring") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// Nor is somebody from elsewhere taken in who is told about.
	o, err := (&Membership{config: worker("w")}).configure()
	if err != nil {
		t.Fatal(err)
	}
	cidr := memberlist.Config{CIDRsAllowed: o.CIDRsAllowed}
	if cidr.IPAllowed(net.ParseIP("192.0.2.1")) == nil || cidr.IPAllowed(net.ParseIP("127.0.0.9")) != nil || cidr.IPAllowed(net.IPv6loopback) != nil {
		t.Error("loopback is something else")
	}
}

// TestErrors says what is wrong with a configuration.
func TestErrors(t *testing.T) {
	taken := start(t, worker("w"))
	_, port, _ := net.SplitHostPort(taken.Address())
	number, _ := strconv.Atoi(port)
	for _, c := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.Meta.Role = "king" }, "king"},
		{func(c *Config) { c.Meta.Worker = "" }, "without an id"},
		{func(c *Config) { c.Port = 70000 }, "70000"},
		{func(c *Config) { c.Bind = "localhost" }, "no IP address"},
		{func(c *Config) { c.Port = number }, "another port"},
		{func(c *Config) { c.KeyringFile = filepath.Join(t.TempDir(), "none") }, "none"},
		{func(c *Config) { c.KeyringFile = keyFile(t) }, "no key in it"},
		{func(c *Config) { c.Meta.Name = strings.Repeat("x", 200) }, "longer"},
	} {
		config := worker("w")
		c.change(&config)
		m, err := Start(config)
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}

func TestKeyring(t *testing.T) {
	a, b := newKey(t), newKey(t)
	keys, err := parseKeyring([]byte("\n# a comment\n  " + a + "\r\n\n" + b))
	if err != nil || len(keys) != 2 || base64Of(keys[0]) != a || base64Of(keys[1]) != b {
		t.Errorf("%v", err)
	}
	for text, says := range map[string]string{
		"":                          "no key",
		"# only words\n":            "no key",
		a + "\n" + a:                "line 2 is there twice",
		a + "\nAAAA\n":              "line 2",
		"not base64!":               "line 1",
		strings.Repeat(a, 2):        "line 1",
		strings.Repeat("x\n", 9000): "line 1",
	} {
		if _, err := parseKeyring([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.20q: %v, want %q", text, err, says)
		}
	}
	if _, err := parseKeyring([]byte(a[:20] + "\n")); err == nil || strings.Contains(err.Error(), a[:20]) {
		t.Errorf("the error tells the key: %v", err)
	}
	var many []string
	for range maxKeys + 1 {
		many = append(many, newKey(t))
	}
	if _, err := parseKeyring([]byte(strings.Join(many, "\n"))); err == nil {
		t.Error("too many keys are taken")
	}
	if _, err := ReadKeyring(os.DevNull); err == nil {
		t.Error("nothing is a keyring")
	}
}

// TestApplyKeys changes rings at random. The order of all but the first is of no matter.
func TestApplyKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.Custom(func(t *rapid.T) [][]byte {
			var keys [][]byte
			for _, b := range rapid.SliceOfNDistinct(rapid.ByteRange(0, 6), 1, 6, rapid.ID).Draw(t, "keys") {
				keys = append(keys, bytes.Repeat([]byte{b}, 16))
			}
			return keys
		})
		before := some.Draw(t, "before")
		ring, err := memberlist.NewKeyring(before, before[0])
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			held := ring.GetKeys() // by somebody who decrypts now
			copied := fmt.Sprint(held)
			want := some.Draw(t, "after")
			if err := applyKeys(ring, want); err != nil {
				t.Fatal(err)
			}
			got := ring.GetKeys()
			if !bytes.Equal(got[0], want[0]) || len(got) != len(want) {
				t.Fatalf("%v, want %v", got, want)
			}
			for _, k := range want {
				if !slices.ContainsFunc(got, func(g []byte) bool { return bytes.Equal(g, k) }) {
					t.Fatalf("%v lacks %v", got, k)
				}
			}
			if fmt.Sprint(held) != copied {
				t.Fatal("keys were moved under a reader")
			}
		}
	})
}

func base64Of(k []byte) string { return base64.StdEncoding.EncodeToString(k) }

// TestMeta encodes at the border of what fits.
func TestMeta(t *testing.T) {
	m := worker("w").Meta
	for n := range 600 {
		for _, unit := range []string{"x", "ü", "<", `"`} {
			m.Kernel = strings.Repeat(unit, n)
			b, err := m.Encode()
			if err != nil || len(b) > MaxMeta {
				t.Fatalf("%d of %s: %d bytes, %v", n, unit, len(b), err)
			}
			got, err := DecodeMeta(b)
			if err != nil || !strings.HasPrefix(m.Kernel, got.Kernel) {
				t.Fatalf("%d of %s: %v", n, unit, err)
			}
			if len(b) < MaxMeta-12 && got.Kernel != m.Kernel {
				t.Fatalf("%d of %s: cut to %d though there is room: %d bytes", n, unit, len(got.Kernel), len(b))
			}
			if got.Kernel = m.Kernel; got != m {
				t.Fatalf("%+v, want %+v", got, m)
			}
		}
	}
	long := strings.Repeat("<", 100)
	if _, err := (Meta{Role: Worker, Worker: long, Name: long, Control: long}).Encode(); err == nil || !strings.Contains(err.Error(), "room") {
		t.Errorf("%v", err)
	}
	for _, text := range []string{
		"", "{}", "null", `{"v":1,"r":"king"}`, `{"v":2,"r":"master","c":":1"}`, `{"v":1,"r":"worker","c":":1"}`,
		`{"v":1,"r":"master","c":":1","s":-1}`, `{"v":1,"r":"master","c":":1","k":"\n"}`, `{"v":1,"r":"master","c":":1","k":"` + strings.Repeat("x", 500) + `"}`,
	} {
		if m, err := DecodeMeta([]byte(text)); err == nil {
			t.Errorf("%s is %+v", text, m)
		}
	}
}

func FuzzDecodeMeta(f *testing.F) {
	for _, m := range []Meta{worker("w").Meta, master("m").Meta} {
		b, err := m.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"v":1,"r":"master","c":"[::]:7119","k":"\u0000"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMeta(b)
		if err != nil {
			return
		}
		_ = Member{Meta: m, Address: "127.0.0.1:1"}.Control()
		again, err := m.Encode()
		if err != nil {
			return // escapes may have made it longer
		}
		if got, err := DecodeMeta(again); err != nil || !strings.HasPrefix(m.Kernel, got.Kernel) {
			t.Errorf("%+v becomes %+v, %v", m, got, err)
		}
	})
}

func FuzzKeyring(f *testing.F) {
	f.Add([]byte("# x\nAAAAAAAAAAAAAAAAAAAAAA==\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := parseKeyring(text)
		if err != nil {
			return
		}
		if ring, err := memberlist.NewKeyring(keys, keys[0]); err != nil || len(ring.GetKeys()) != len(keys) {
			t.Errorf("%d keys, %v", len(keys), err)
		}
	})
}

func TestControl(t *testing.T) {
	for _, c := range []struct{ control, want string }{
		{":7119", "10.0.0.1:7119"},
		{"0.0.0.0:7119", "10.0.0.1:7119"},
		{"[::]:7119", "10.0.0.1:7119"},
		{"10.9.9.9:1", "10.9.9.9:1"},
		{"host:2", "host:2"},
		{"", ""},
		{"nonsense", "nonsense"},
	} {
		if got := (Member{Address: "10.0.0.1:7118", Meta: Meta{Control: c.control}}).Control(); got != c.want {
			t.Errorf("%q: %q, want %q", c.control, got, c.want)
		}
	}
}

// TestLog hands the library's lines on, a level lower.
func TestLog(t *testing.T) {
	var b bytes.Buffer
	var quiet atomic.Bool
	w := logWriter{quiet: &quiet, log: slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))}
	for _, line := range []string{"[ERR] memberlist: bad\n", "[WARN] memberlist: so\n", "[INFO] memberlist: not shown\n", "[DEBUG] memberlist: not shown\n"} {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Error(n, err)
		}
	}
	if want := "level=WARN msg=bad by=gossip\nlevel=INFO msg=so by=gossip\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
