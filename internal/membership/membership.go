// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// Port is where a master gossips if nothing is said, and WorkerPort where a worker
// does, UDP and TCP: both may be on one host. Seeds without a port are asked at both.
const (
	Port       = 7118
	WorkerPort = 7121
)

// Defaults of Config.
const (
	DefaultProbe  = time.Second
	DefaultRejoin = 10 * time.Second
)

// keyCheck is how often the keyring file is looked at.
const keyCheck = 2 * time.Second

// Config says what a member is to be.
type Config struct {
	// Name is for people; several members may have the same.
	Name string
	// Bind is the address to listen at. "": all of them, or 127.0.0.1 without a keyring.
	Bind string
	Port int // 0: Port. Negative: any that is free
	// Advertise is the address that others reach this member at. "": Bind, or if that
	// is all, a private one of this host.
	Advertise string
	// Join are seeds, host or host:port: members that are asked who else is there. They
	// are asked again whenever one of them is not among the members, so that parts of a
	// cluster find each other again.
	Join []string
	// KeyringFile holds the keys that gossip is encrypted with; it is read again when it
	// changes. "": nothing is encrypted, and only loopback addresses are talked to.
	KeyringFile string
	Meta        Meta
	// Suspect is told of workers, by their id, that gossip takes for gone, and when they
	// are back. Calls follow each other. It is not told what has changed back meanwhile.
	Suspect func(id string, suspect bool)
	// Joined is called when a master has come, or its address is another. It says only
	// that Masters is worth a look.
	Joined func()
	Log    *slog.Logger

	Probe    time.Duration // how often some member is probed; 0: DefaultProbe
	Rejoin   time.Duration // how often seeds are asked that are not there; 0: DefaultRejoin
	KeyCheck time.Duration // how often the keyring file is looked at; 0: 2 s
}

// Member is somebody who is there, as far as is known.
type Member struct {
	ID      string // unique to its process
	Address string // of gossip, host:port
	Meta    Meta
}

// Membership is a member's view.
type Membership struct {
	config  Config
	list    *memberlist.Memberlist
	keyring *keyring // nil: none
	id      string
	meta    []byte
	log     *slog.Logger

	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	order   uint64 // counts joins
	members map[string]seenMember
	pending map[string]bool // suspicions to be told, by worker id
	turn    []string        // the order in which
	masters bool            // Joined is to be called
	wake    chan struct{}

	ending  atomic.Bool
	closing sync.Once
	closed  error
}

type seenMember struct {
	Member
	order uint64
}

// loopback is what members without a keyring may have as addresses.
var loopback = []net.IPNet{
	{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)},
	{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
}

// Start makes this process a member. It does not wait for others: seeds that do not
// answer are asked again until they do. End it with Leave or Close.
func Start(c Config) (*Membership, error) {
	m := &Membership{
		config: c, log: c.Log, members: map[string]seenMember{}, pending: map[string]bool{}, wake: make(chan struct{}, 1),
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	o, err := m.configure()
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	if m.list, err = memberlist.Create(o); err != nil {
		return nil, fmt.Errorf("gossip at %s: %w", net.JoinHostPort(o.BindAddr, strconv.Itoa(o.BindPort)), tell(err))
	}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.done.Go(func() { m.tellSuspicions(ctx) })
	m.done.Go(func() { m.rejoin(ctx) })
	if m.keyring != nil {
		m.done.Go(func() { m.watchKeys(ctx) })
	}
	return m, nil
}

// tell says what to do about an error of the library.
func tell(err error) error {
	switch text := err.Error(); {
	case strings.Contains(text, "No private IP address found"):
		return errors.New("no private address was found on this host: say which one others reach it at (advertise)")
	case strings.Contains(text, "address already in use"):
		return fmt.Errorf("%w: does another member run here? Give it another port", err)
	}
	return err
}

// configure turns our configuration into the library's.
func (m *Membership) configure() (*memberlist.Config, error) {
	c := &m.config
	var err error
	if m.meta, err = c.Meta.Encode(); err != nil {
		return nil, err
	}
	switch {
	case c.Port == 0:
		c.Port = Port
	case c.Port < 0:
		c.Port = 0
	case c.Port > math.MaxUint16:
		return nil, fmt.Errorf("port %d: ports go up to 65535", c.Port)
	}
	if c.Probe <= 0 {
		c.Probe = DefaultProbe
	}
	if c.Rejoin <= 0 {
		c.Rejoin = DefaultRejoin
	}
	if c.KeyCheck <= 0 {
		c.KeyCheck = keyCheck
	}
	o := memberlist.DefaultLANConfig()
	if c.KeyringFile != "" {
		if m.keyring, err = openKeyring(c.KeyringFile); err != nil {
			return nil, err
		}
		o.Keyring = m.keyring.ring
	} else {
		o.CIDRsAllowed = loopback
	}
	if c.Bind == "" {
		if c.Bind = "0.0.0.0"; m.keyring == nil {
			c.Bind = "127.0.0.1"
		}
	}
	for _, a := range []string{c.Bind, c.Advertise} {
		if a == "" {
			continue
		}
		address, err := netip.ParseAddr(a)
		if err != nil {
			return nil, fmt.Errorf("%q is no IP address", a)
		}
		if m.keyring == nil && !address.IsLoopback() {
			return nil, fmt.Errorf("%s can be reached from other hosts, and without a keyring gossip is neither encrypted nor authenticated: give a keyring, or use 127.0.0.1", a)
		}
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fmt.Errorf("make an id: %w", err)
	}
	// The name that the library goes by is new in every process. So one that has been
	// started again is not kept out by what others remember of its predecessor, whatever
	// address it has.
	name := cut(c.Name, 64)
	if name == "" {
		name = c.Meta.Role
	}
	m.id = fmt.Sprintf("%s-%x", name, random)
	o.Name = m.id
	o.BindAddr, o.BindPort = c.Bind, c.Port
	o.AdvertiseAddr, o.AdvertisePort = c.Advertise, c.Port
	o.Label = "quern"
	o.TCPTimeout = 3 * time.Second
	o.ProbeInterval, o.ProbeTimeout = c.Probe, c.Probe/2
	o.GossipInterval = c.Probe / 5
	o.PushPullInterval = 20 * c.Probe
	o.GossipToTheDeadTime = 30 * c.Probe
	o.DeadNodeReclaimTime = 30 * c.Probe
	o.Delegate, o.Events, o.Conflict, o.Alive = delegate{m}, delegate{m}, delegate{m}, delegate{m}
	o.Logger = log.New(logWriter{m.log, &m.ending}, "", 0)
	return o, nil
}

// ID returns the name that this member goes by.
func (m *Membership) ID() string { return m.id }

// Address returns where this member listens, host:port.
func (m *Membership) Address() string {
	n := m.list.LocalNode()
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}

// Members returns who is there, this member too, by name and id.
func (m *Membership) Members() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Member, 0, len(m.members))
	for _, s := range m.members {
		all = append(all, s.Member)
	}
	slices.SortFunc(all, func(a, b Member) int {
		if c := strings.Compare(a.Meta.Name, b.Meta.Name); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// Masters returns the addresses of the masters' control planes, the one that came last
// first.
func (m *Membership) Masters() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var masters []seenMember
	for _, s := range m.members {
		if s.Meta.Role == Master {
			masters = append(masters, s)
		}
	}
	slices.SortFunc(masters, func(a, b seenMember) int {
		if a.order > b.order {
			return -1
		}
		return 1
	})
	var addresses []string
	for _, s := range masters {
		if a := control(s.Member); !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// control returns where a member's control plane is.
func control(m Member) string {
	host, port, err := net.SplitHostPort(m.Meta.Control)
	if err != nil {
		return m.Meta.Control
	}
	if a, err := netip.ParseAddr(host); host != "" && (err != nil || !a.IsUnspecified()) {
		return m.Meta.Control
	}
	if host, _, err = net.SplitHostPort(m.Address); err != nil {
		return m.Meta.Control
	}
	return net.JoinHostPort(host, port)
}

// Control returns where the control plane of a member is, host:port.
func (m Member) Control() string { return control(m) }

// leaveTime is how long Leave waits until somebody has heard it.
const leaveTime = 2 * time.Second

// Leave tells the others that this member goes, and ends it. It waits up to 2 s until
// one has heard it.
func (m *Membership) Leave() error {
	return m.end(func() error {
		if err := m.list.Leave(leaveTime); err != nil {
			return fmt.Errorf("leave the gossip: %w", err)
		}
		return nil
	})
}

// Close ends this member without a word, as if it were killed.
func (m *Membership) Close() error { return m.end(func() error { return nil }) }

func (m *Membership) end(first func() error) error {
	m.closing.Do(func() {
		m.stop()
		m.ending.Store(true)
		m.closed = errors.Join(first(), m.list.Shutdown())
		m.done.Wait()
	})
	return m.closed
}

// rejoin asks seeds that are not among the members.
func (m *Membership) rejoin(ctx context.Context) {
	said := map[string]string{}
	for wait := time.Duration(0); ; {
		if !sleep(ctx, wait) {
			return
		}
		joined := true
		for _, seed := range m.config.Join {
			if err := m.joinSeed(ctx, seed); err == nil {
				delete(said, seed)
			} else if ctx.Err() != nil {
				return
			} else {
				joined = false
				if text := err.Error(); said[seed] != text {
					said[seed] = text
					m.log.Info("a seed of the gossip does not answer; it will be asked again", "seed", seed, "error", err)
				}
			}
		}
		// A little off the beat, so that a cluster that starts anew does not ask in step.
		wait = m.config.Rejoin/2 + mrand.N(m.config.Rejoin)
		if !joined && m.alone() {
			wait = min(wait, m.config.Probe)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (m *Membership) alone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.members) <= 1
}

// joinSeed asks a seed who is there, unless it is a member.
func (m *Membership) joinSeed(ctx context.Context, seed string) error {
	host, port, err := net.SplitHostPort(seed)
	ports := []string{port}
	if err != nil {
		host, ports = strings.Trim(seed, "[]"), []string{strconv.Itoa(Port), strconv.Itoa(WorkerPort)}
	}
	addresses := []netip.Addr{}
	if a, err := netip.ParseAddr(host); err == nil {
		addresses = append(addresses, a)
	} else {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if addresses, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
			return fmt.Errorf("find the address of seed %s: %w", seed, err)
		}
	}
	var failed error
	for _, a := range addresses {
		for _, port := range ports {
			full := net.JoinHostPort(a.Unmap().String(), port)
			if m.has(full) {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if _, err := m.list.Join([]string{full}); err != nil {
				failed = errors.Join(failed, fmt.Errorf("ask seed %s: %w", full, errors.New(oneLine(err))))
				continue
			}
			return nil
		}
	}
	return failed
}

// oneLine takes the library's lists of errors apart.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimLeft(strings.TrimSpace(line), "* "); line != "" && !strings.HasSuffix(line, "occurred:") {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}

func (m *Membership) has(address string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.members {
		if s.Address == address {
			return true
		}
	}
	return false
}

func (m *Membership) watchKeys(ctx context.Context) {
	for sleep(ctx, m.config.KeyCheck) {
		changed, err := m.keyring.reload()
		switch {
		case err != nil:
			m.log.Warn("the keyring could not be read again: the keys that were there stay in use", "error", err)
		case changed:
			m.log.Info("the keyring was read again", "file", m.config.KeyringFile, "keys", len(m.keyring.ring.GetKeys()))
		}
	}
}

// tellSuspicions calls Suspect and Joined, outside of the library's locks.
func (m *Membership) tellSuspicions(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		m.mu.Lock()
		turn, pending, masters := m.turn, m.pending, m.masters
		m.turn, m.pending, m.masters = nil, map[string]bool{}, false
		m.mu.Unlock()
		if masters && m.config.Joined != nil {
			m.config.Joined()
		}
		for _, id := range turn {
			if m.config.Suspect != nil && ctx.Err() == nil {
				m.config.Suspect(id, pending[id])
			}
		}
	}
}

// suspect notes what is to be told. The caller holds m.mu.
func (m *Membership) suspect(id string, suspect bool) {
	if id == "" {
		return
	}
	if _, ok := m.pending[id]; !ok {
		m.turn = append(m.turn, id)
	}
	m.pending[id] = suspect
	m.signal()
}

func (m *Membership) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// delegate is what the library calls. It holds its own locks meanwhile.
type delegate struct{ m *Membership }

func (d delegate) NodeMeta(int) []byte                  { return d.m.meta }
func (d delegate) NotifyMsg([]byte)                     {}
func (d delegate) GetBroadcasts(int, int) [][]byte      { return nil }
func (d delegate) LocalState(bool) []byte               { return nil }
func (d delegate) MergeRemoteState([]byte, bool)        {}
func (d delegate) NotifyUpdate(n *memberlist.Node)      { d.NotifyJoin(n) }
func (d delegate) NotifyAlive(n *memberlist.Node) error { _, err := DecodeMeta(n.Meta); return err }

func (d delegate) NotifyConflict(a, b *memberlist.Node) {
	d.m.log.Warn("two members go by one name: one of them is ignored", "name", a.Name, "address", a.Address(), "other", b.Address())
}

func (d delegate) NotifyJoin(n *memberlist.Node) {
	meta, err := DecodeMeta(n.Meta)
	if err != nil {
		return // NotifyAlive has refused it
	}
	m := d.m
	m.mu.Lock()
	defer m.mu.Unlock()
	s, known := m.members[n.Name]
	if !known {
		m.order++
		s.order = m.order
	}
	s.Member = Member{ID: n.Name, Address: net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port))), Meta: meta}
	m.members[n.Name] = s
	if meta.Role == Master && n.Name != m.id {
		m.masters = true
		m.signal()
	}
	if meta.Role == Worker && n.Name != m.id {
		m.suspect(meta.Worker, false)
	}
}

func (d delegate) NotifyLeave(n *memberlist.Node) {
	m := d.m
	m.mu.Lock()
	defer m.mu.Unlock()
	s, known := m.members[n.Name]
	delete(m.members, n.Name)
	if !known || s.Meta.Role != Worker || n.Name == m.id {
		return
	}
	// The same worker may be there under another name of the gossip.
	for _, other := range m.members {
		if other.Meta.Worker == s.Meta.Worker {
			return
		}
	}
	m.suspect(s.Meta.Worker, true)
}

// logWriter hands the library's lines on, a level lower than it takes them for: what
// bothers gossip is no failure of ours.
type logWriter struct {
	log *slog.Logger
	// quiet says that the end has come: the library complains of what it has closed itself.
	quiet *atomic.Bool
}

func (w logWriter) Write(p []byte) (int, error) {
	text := strings.TrimSpace(string(p))
	level := slog.LevelDebug
	for prefix, l := range map[string]slog.Level{"[ERR]": slog.LevelWarn, "[WARN]": slog.LevelInfo, "[INFO]": slog.LevelDebug, "[DEBUG]": slog.LevelDebug} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			level, text = l, strings.TrimSpace(rest)
		}
	}
	if w.quiet.Load() {
		level = slog.LevelDebug
	}
	w.log.Log(context.Background(), level, strings.TrimPrefix(text, "memberlist: "), "by", "gossip")
	return len(p), nil
}
