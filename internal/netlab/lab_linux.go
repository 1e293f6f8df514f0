// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/quernmr/quern/bpf/faults"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Lab is a network of hosts. Its methods may be called at the same time.
type Lab struct {
	options Options
	record  *record
	bridge  *namespace
	hosts   []*Host
	ends    *faults.Ends
	starter *starter
	begin   []Link // overruns while links came up

	mu     sync.Mutex // guards the rest
	closed bool
	seed   uint64
	wire   *faults.Wire // nil until a fault is asked for
	holder *holder      // the same
	direct bool         // the switch is on
}

// New builds a lab. It takes some 10 ms a host. Leftovers of labs whose process
// was killed are removed first.
func New(o Options) (lab *Lab, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := rights(); err != nil {
		return nil, err
	}
	if _, err := Sweep(); err != nil {
		return nil, err
	}
	l := &Lab{options: o, seed: o.Seed}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("build a lab: %w", err), l.Close())
		}
	}()
	if l.record, err = newRecord(o.Name); err != nil {
		return nil, err
	}
	if l.ends, err = faults.LoadEnds(o.MTU, 0); err != nil {
		return nil, err
	}
	if l.bridge, err = newNamespace(l.record.name+"-wire", bridgeSettings); err != nil {
		return nil, err
	}
	for i := 1; i <= o.Hosts; i++ {
		ns, err := newNamespace(fmt.Sprintf("%s-h%d", l.record.name, i), hostSettings)
		if err != nil {
			return nil, fmt.Errorf("host %d: %w", i, err)
		}
		l.hosts = append(l.hosts, &Host{lab: l, number: i, namespace: ns})
	}
	l.starter = newStarter()
	if err := l.record.write(l.namespaces()); err != nil {
		return nil, err
	}
	if err := l.connect(); err != nil {
		return nil, err
	}
	if l.begin, err = l.overruns(); err != nil {
		return nil, err
	}
	if o.Faults.Any() {
		if err := l.SetFaults(o.Faults); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.turnSwitch(!l.spoiled()); err != nil {
		return nil, err
	}
	return l, nil
}

// spoiled says whether any link has faults or is cut. The caller holds l.mu.
func (l *Lab) spoiled() bool {
	return slices.ContainsFunc(l.hosts, func(h *Host) bool { return h.cut || h.faults[From].Any() || h.faults[To].Any() })
}

// turnSwitch turns the switch on or off if there is one. The caller holds l.mu.
func (l *Lab) turnSwitch(on bool) error {
	if !l.options.Switch || l.direct == on {
		return nil
	}
	if err := l.ends.Switch(on); err != nil {
		return err
	}
	l.direct = on
	return nil
}

func (l *Lab) namespaces() []*namespace {
	var all []*namespace
	if l.bridge != nil {
		all = append(all, l.bridge)
	}
	for _, h := range l.hosts {
		all = append(all, h.namespace)
	}
	return all
}

const bridgeName = "br0"

func portName(i int) string { return fmt.Sprintf("p%d", i) }

// connect makes the bridge and a link to each host.
func (l *Lab) connect() error {
	wire, err := l.bridge.handle()
	if err != nil {
		return err
	}
	defer wire.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = bridgeName, l.options.MTU
	attributes.HardwareAddr = net.HardwareAddr{0x02, 0x71, 0x17, 1, 0, 0}
	snooping := false // it looks into packets, and none but hosts is asked for groups
	if err := wire.LinkAdd(&netlink.Bridge{LinkAttrs: attributes, MulticastSnooping: &snooping}); err != nil {
		return fmt.Errorf("make a bridge: %w", err)
	}
	bridge, err := wire.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find the bridge: %w", err)
	}
	if err := wire.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("set the bridge up: %w", err)
	}
	for _, h := range l.hosts {
		if err := h.connect(wire, bridge.Attrs().Index); err != nil {
			return fmt.Errorf("host %d: %w", h.number, err)
		}
	}
	return l.waitForLinks()
}

// waitForLinks returns when all links carry packets: the kernel notices a moment
// later that they are up, and drops what is sent before.
func (l *Lab) waitForLinks() error {
	ends := map[*namespace]int{l.bridge: len(l.hosts)}
	for _, h := range l.hosts {
		ends[h.namespace] = 1
	}
	for ns, n := range ends {
		err := ns.do(func() error {
			for begin := time.Now(); ; time.Sleep(time.Millisecond) {
				up, err := linksUp()
				if err != nil || up == n {
					return err
				}
				if time.Since(begin) > 10*time.Second {
					return fmt.Errorf("%d of %d links come up", up, n)
				}
			}
		})
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", ns.name, err)
		}
	}
	return nil
}

// linksUp counts the ends of links in the thread's namespace that can send.
func linksUp() (int, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return 0, fmt.Errorf("list the links: %w", err)
	}
	const up, forwarding = 6, 3 // IF_OPER_UP, BR_STATE_FORWARDING
	n := 0
	for _, m := range messages {
		m = m[nl.DeserializeIfInfomsg(m).Len():]
		if kind := attribute(m, unix.IFLA_LINKINFO, unix.IFLA_INFO_KIND); !bytes.HasPrefix(kind, []byte("veth")) {
			continue
		}
		// Until it is told that the link is up, a queueing discipline drops everything.
		if state := attribute(m, unix.IFLA_OPERSTATE); len(state) < 1 || state[0] != up ||
			bytes.HasPrefix(attribute(m, unix.IFLA_QDISC), []byte("noop\x00")) {
			continue
		}
		if state := attribute(m, unix.IFLA_LINKINFO, unix.IFLA_INFO_SLAVE_DATA, nl.IFLA_BRPORT_STATE); len(state) > 0 && state[0] != forwarding {
			continue
		}
		n++
	}
	return n, nil
}

// attribute returns a netlink attribute by its path, or nil.
func attribute(b []byte, path ...uint16) []byte {
	attributes, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	for _, a := range attributes {
		if a.Attr.Type&^unix.NLA_F_NESTED == path[0] {
			if len(path) == 1 {
				return a.Value
			}
			return attribute(a.Value, path[1:]...)
		}
	}
	return nil
}

// Name begins the names of the lab's namespaces.
func (l *Lab) Name() string { return l.record.name }

// Options returns what the lab was made of, with defaults filled in.
func (l *Lab) Options() Options { return l.options }

// Hosts returns all hosts, Host(1) first.
func (l *Lab) Hosts() []*Host { return append([]*Host(nil), l.hosts...) }

// Host returns a host by its number, from 1. There is none for other numbers: nil.
func (l *Lab) Host(i int) *Host {
	if i < 1 || i > len(l.hosts) {
		return nil
	}
	return l.hosts[i-1]
}

func (l *Lab) host(i int) (*Host, error) {
	if h := l.Host(i); h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("there is no host %d in a lab of %d", i, len(l.hosts))
}

// SetFaults changes the faults of all links in direction To, so that each
// packet meets them once, and takes away those in direction From.
func (l *Lab) SetFaults(f Faults) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.hosts {
		h.faults = [2]Faults{To: f}
	}
	return l.plan(false, l.hosts...)
}

// Cut cuts the link of host i in both directions. Nothing gets through, and the
// host is not told. Packets that are held for it are lost when they are due.
func (l *Lab) Cut(i int) error { return l.setCut(i, true) }

// Heal undoes Cut.
func (l *Lab) Heal(i int) error { return l.setCut(i, false) }

func (l *Lab) setCut(i int, cut bool) error {
	h, err := l.host(i)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h.cut = cut
	return l.plan(false, h)
}

// Reseed begins the draws of all links anew with another seed: the next packet
// on each has number 0. For draws to repeat, nothing may be under way meanwhile.
func (l *Lab) Reseed(seed uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seed = seed
	return l.plan(true, l.hosts...)
}

// plan tells the programs what hosts' links are to do. The caller holds l.mu.
func (l *Lab) plan(renumber bool, hosts ...*Host) error {
	if l.closed {
		return errClosed
	}
	wanted := false
	for _, h := range hosts {
		wanted = wanted || h.cut || h.faults[From].Any() || h.faults[To].Any()
		for _, f := range h.faults {
			if err := f.Check(); err != nil {
				return fmt.Errorf("faults of host %d: %w", h.number, err)
			}
		}
	}
	if l.wire == nil {
		if !wanted {
			return nil
		}
		if err := l.spoil(); err != nil {
			return err
		}
	}
	spoiled := l.spoiled()
	if spoiled {
		if err := l.turnSwitch(false); err != nil {
			return err
		}
	}
	for _, h := range hosts {
		for _, d := range []Direction{From, To} {
			plan := h.faults[d].plan(faults.SeedOf(l.seed, h.number, d), h.cut)
			if err := l.wire.SetPlan(h.port, d, plan, renumber); err != nil {
				return fmt.Errorf("faults of host %d: %w", h.number, err)
			}
		}
	}
	if spoiled {
		return nil
	}
	return l.turnSwitch(true)
}

// spoil puts the faults' programs at all ports.
func (l *Lab) spoil() (err error) {
	highest := 0
	for _, h := range l.hosts {
		highest = max(highest, h.port)
	}
	wire, err := faults.LoadWire(highest)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = wire.Close()
		}
	}()
	err = l.bridge.do(func() error {
		for _, h := range l.hosts {
			if err := wire.Attach(h.port); err != nil {
				return fmt.Errorf("port of host %d: %w", h.number, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	holder, err := newHolder(wire, l.bridge)
	if err != nil {
		return err
	}
	l.wire, l.holder = wire, holder
	return nil
}

// Counters returns what the links did.
func (l *Lab) Counters() (Counters, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return Counters{}, errClosed
	}
	var c Counters
	var err error
	if c.Links, err = l.overruns(); err != nil {
		return c, err
	}
	for i, h := range l.hosts {
		link := &c.Links[i]
		link.From.Overrun -= l.begin[i].From.Overrun
		link.To.Overrun -= l.begin[i].To.Overrun
		if l.wire == nil {
			continue
		}
		if link.From.Tally, err = l.wire.Tally(h.port, From); err != nil {
			return c, err
		}
		if link.To.Tally, err = l.wire.Tally(h.port, To); err != nil {
			return c, err
		}
	}
	if l.holder != nil {
		c.Released, c.Discarded = l.holder.counts()
	}
	return c, nil
}

// overruns returns what the queues of all links had no room for.
func (l *Lab) overruns() ([]Link, error) {
	wire, err := l.bridge.handle()
	if err != nil {
		return nil, err
	}
	defer wire.Close()
	links := make([]Link, len(l.hosts))
	for i, h := range l.hosts {
		if links[i].To.Overrun, err = overrun(wire, portName(h.number)); err != nil {
			return nil, err
		}
		host, err := h.namespace.handle()
		if err != nil {
			return nil, err
		}
		links[i].From.Overrun, err = overrun(host, InterfaceName)
		host.Close()
		if err != nil {
			return nil, err
		}
	}
	return links, nil
}

// overrun returns how many packets the other end of a veth had no room for.
func overrun(h *netlink.Handle, name string) (uint64, error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find interface %s: %w", name, err)
	}
	if s := link.Attrs().Statistics; s != nil {
		return s.TxDropped, nil
	}
	return 0, nil
}

// grace is how long processes have to end when a lab is closed.
const grace = time.Second

// Close ends all processes that are left in the hosts (by SIGTERM, and those
// that are still there a second later by SIGKILL) and removes the lab. Packets
// that are held are lost. Only the first call does anything.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var err error
	if len(l.hosts) > 0 {
		err = endProcesses(l.namespaces(), grace)
	}
	if l.starter != nil {
		l.starter.stop()
	}
	if l.holder != nil {
		err = errors.Join(err, l.holder.close())
	}
	if l.ends != nil {
		err = errors.Join(err, l.ends.Close())
	}
	for _, ns := range l.namespaces() {
		err = errors.Join(err, ns.close())
	}
	if l.record != nil {
		err = errors.Join(err, l.record.remove())
	}
	if err != nil {
		return fmt.Errorf("remove the lab: %w", err)
	}
	return nil
}

// hostSettings make addresses usable at once and keep hosts quiet.
var hostSettings = []setting{
	{"ipv6/conf/default/disable_ipv6", "0"},
	{"ipv6/conf/all/disable_ipv6", "0"},
	{"ipv6/conf/default/accept_dad", "0"},
	{"ipv6/conf/default/dad_transmits", "0"},
	{"ipv6/conf/default/accept_ra", "0"},
	{"ipv6/conf/default/router_solicitations", "0"},
}

// bridgeSettings keep the bridge from looking at packets and from sending any.
var bridgeSettings = []setting{
	{"ipv6/conf/default/disable_ipv6", "1"},
	{"bridge/bridge-nf-call-iptables", "0"},
	{"bridge/bridge-nf-call-ip6tables", "0"},
	{"bridge/bridge-nf-call-arptables", "0"},
}

// setting is a file below /proc/sys/net. One that the kernel lacks is about
// something that it lacks, too.
type setting struct{ path, value string }

func (s setting) apply() error {
	f, err := os.OpenFile("/proc/sys/net/"+s.path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("change a setting of the namespace: %w", err)
	}
	_, err = f.WriteString(s.value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("change a setting of the namespace: %w", err)
	}
	return nil
}

// monotonic returns the clock that programs read, in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	// It fails for clocks that do not exist.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}
