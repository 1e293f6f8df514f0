// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// welcomeWait is how long a master may take to answer a hello.
	welcomeWait = 15 * time.Second
	// maxPause is the longest wait between attempts to reach a master.
	maxPause = 5 * time.Second
	// unheard is how long data may be on its way without being acknowledged before a connection counts as broken.
	unheard = 10 * time.Second
	// flush is how often progress is told.
	flush = 250 * time.Millisecond
	// defaultLease is used with a master that names none.
	defaultLease = 10 * time.Second
)

// errStopped is why an attempt ends that the master does not want.
var errStopped = errors.New("stopped by the master")

// errStale is why a worker breaks its own link: the lease may have run out unseen.
var errStale = errors.New("this process was stopped, or could not send, for longer than its lease")

// link is a stream to a master that has welcomed this worker.
type link struct {
	client api.AttendanceClient
	stream grpc.BidiStreamingClient[api.WorkerMessage, api.MasterMessage]
	lease  time.Duration
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	sent time.Time // when the last message was handed over

	leaving chan struct{} // closed when the worker leaves
	once    sync.Once
}

// stale breaks the link if the lease may have run out. The monotonic clock goes on
// while a process is stopped, so one that was finds out before it acts.
func (l *link) stale() bool {
	l.mu.Lock()
	over := time.Since(l.sent) > l.lease
	l.mu.Unlock()
	if over {
		l.cancel(errStale)
	}
	return over
}

func (l *link) send(m *api.WorkerMessage) error {
	now := time.Now() // the lease counts from before it is sent
	if err := l.stream.Send(m); err != nil {
		return err
	}
	l.mu.Lock()
	l.sent = now
	l.mu.Unlock()
	return nil
}

func (l *link) leave() { l.once.Do(func() { close(l.leaving) }) }

// attend looks for a master and stays with it, again and again, until ctx is done.
func (w *Worker) attend(ctx context.Context) {
	pause := w.opt.pause
	said := ""
	for ctx.Err() == nil {
		addresses, err := w.opt.Masters(ctx)
		if err == nil && len(addresses) == 0 {
			err = errors.New("nobody knows where a master is")
		}
		welcomed := false
		for _, a := range addresses {
			if ctx.Err() != nil {
				return
			}
			began := time.Now()
			var e error
			welcomed, e = w.session(ctx, a)
			if errors.Is(e, errLeft) {
				return
			}
			err = fmt.Errorf("master %s: %w", a, e)
			if welcomed {
				if time.Since(began) > time.Second || errors.Is(e, errStale) {
					pause = w.opt.pause
				}
				break
			}
		}
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); welcomed || text != said {
			// One that stays away is not worth a line each time.
			w.opt.Log.Warn("no master; attempts and outputs are kept", "error", text, "attempts", w.count())
			said = text
		}
		// Many workers must not all come at the same moment.
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// dial makes a connection to a master or peer.
func dial(address string, creds credentials.TransportCredentials, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	d := net.Dialer{Timeout: 5 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
		// Without it a link that was cut is noticed after many minutes.
		return c.Control(func(fd uintptr) { _ = userTimeout(fd, int(unheard/time.Millisecond)) })
	}}
	return grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return d.DialContext(ctx, "tcp", a) }),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
	}, more...)...)
}

// session attends one master for as long as that goes. It says whether the master took this worker.
func (w *Worker) session(ctx context.Context, address string) (welcomed bool, err error) {
	conn, err := dial(address, w.opt.Master)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A failed wait is a broken stream, and the cause says of what.
	explain := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if errors.Is(err, io.EOF) {
			return errors.New("it ended the conversation")
		}
		return err
	}
	l := &link{client: api.NewAttendanceClient(conn), ctx: ctx, cancel: cancel, lease: welcomeWait, leaving: make(chan struct{})}
	timer := time.AfterFunc(welcomeWait, func() { cancel(fmt.Errorf("no answer to a hello within %v", welcomeWait)) })
	defer timer.Stop()
	if l.stream, err = l.client.Attend(ctx); err != nil {
		return false, explain(err)
	}
	hello := w.hello()
	if err := l.send(hello); err != nil && !errors.Is(err, io.EOF) {
		return false, explain(err)
	}
	m, err := l.stream.Recv()
	if err != nil {
		return false, explain(err)
	}
	welcome := m.GetWelcome()
	if welcome == nil {
		return false, errors.New("it answered a hello with something else: do its and this worker's versions fit together?")
	}
	if !timer.Stop() || l.stale() {
		return false, explain(errStale)
	}
	if l.lease = time.Duration(welcome.GetLeaseMs()) * time.Millisecond; l.lease <= 0 {
		l.lease = defaultLease
	}
	if !w.belongs(address, welcome.GetCluster()) {
		return false, fmt.Errorf("it is the master of another cluster (%s), and this worker does not change clusters by itself: start it anew for that", welcome.GetCluster())
	}
	w.opt.Log.Info("attending a master", "master", address, "cluster", welcome.GetCluster(), "epoch", welcome.GetEpoch(), "lease", l.lease)
	w.welcomed(l, welcome)
	defer w.unlink(l)

	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { w.tell(l) })
	w.handle(m)
	for {
		m, err := l.stream.Recv()
		if err != nil {
			select {
			case <-l.leaving:
				err = errLeft
			default:
				err = explain(err)
			}
			return true, err
		}
		if l.stale() {
			return true, errStale
		}
		w.handle(m)
	}
}

// hello says who this worker is and what it has.
func (w *Worker) hello() *api.WorkerMessage {
	o := &w.opt
	h := &api.Hello{
		Worker: w.id, Name: o.Name, Address: o.Address, Slots: uint32(o.Slots), Memory: o.Memory,
		Version: o.Version, Protocol: api.Protocol, Platform: platform,
		Kernel: o.folds(), Shuffle: o.Shuffle, Local: o.Local,
	}
	w.mu.Lock()
	h.Cluster = w.cluster
	draining := w.draining
	for _, a := range w.attempts {
		h.Running = append(h.Running, a.launch.GetAttempt())
	}
	w.mu.Unlock()
	// In this order: an output that is taken over at this moment is in one of the lists at least. It is to be in one alone.
	h.Outputs = w.ex.Held()
	kept := make(map[key]bool, len(h.Outputs))
	for _, o := range h.Outputs {
		kept[keyOf(o.GetAttempt())] = true
	}
	h.Running = slices.DeleteFunc(h.Running, func(a *api.Attempt) bool { return kept[keyOf(a)] })
	h.Jobs = w.broadcastJobs()
	m := &api.WorkerMessage{Hello: h, Draining: draining}
	m.Members, m.Formed = w.gangs.news(true)
	return m
}

// broadcastJobs lists the jobs of which broadcasts have left something here, or are sent from here.
func (w *Worker) broadcastJobs() []string {
	jobs := slices.Concat(w.blobs.known(), w.casts.known())
	slices.Sort(jobs)
	return slices.Compact(jobs)
}

// belongs says whether this worker may attend the master of a cluster at an address. A
// worker that has been with another cluster follows only where that one's master was
// before: there the journal was lost, while anywhere else somebody else's master happens to listen.
func (w *Worker) belongs(address, cluster string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cluster != "" && w.cluster != cluster && !slices.Contains(w.masters, address) {
		return false
	}
	if !slices.Contains(w.masters, address) {
		w.masters = append(w.masters, address)
	}
	return true
}

// welcomed makes l the link that all goes over.
func (w *Worker) welcomed(l *link, welcome *api.Welcome) {
	other := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		was := w.cluster
		w.cluster = welcome.GetCluster()
		return was != "" && was != w.cluster
	}()
	if other {
		// Nobody there knows these jobs, and nobody will ask for them.
		w.opt.Log.Warn("this is another cluster than before: its jobs are dropped here")
		w.mu.Lock()
		for _, a := range w.attempts {
			a.cancel(fmt.Errorf("%w: it belongs to another cluster", errStopped))
		}
		w.mu.Unlock()
		jobs := w.broadcastJobs()
		for _, h := range w.ex.Held() {
			jobs = append(jobs, h.GetJob())
		}
		slices.Sort(jobs)
		for _, job := range slices.Compact(jobs) {
			w.casts.forget(job)
			w.gangs.forget(job)
			w.drop(job)
		}
	}
	for _, a := range welcome.GetStop() {
		w.stop(a, "not wanted any more")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.link = l
	close(w.linked)
	for _, a := range w.attempts {
		a.repeat()
	}
	w.casts.repeat()
	w.gangs.repeat()
	w.nudge()
}

func (w *Worker) unlink(l *link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link == l {
		w.link = nil
		w.linked = make(chan struct{})
	}
}

// current waits for a link whose lease is fresh.
func (w *Worker) current(ctx context.Context) (*link, error) {
	for {
		w.mu.Lock()
		l, linked := w.link, w.linked
		w.mu.Unlock()
		if l != nil {
			if l.ctx.Err() == nil && !l.stale() {
				return l, nil
			}
			// It is about to be taken away.
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		select {
		case <-linked:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tell renews the lease and reports, until the link ends.
func (w *Worker) tell(l *link) {
	tick := time.NewTicker(min(flush, l.lease/4))
	defer tick.Stop()
	last := time.Now()
	for {
		urgent := false
		select {
		case <-l.ctx.Done():
			return
		case <-l.leaving:
			if l.send(&api.WorkerMessage{Leaving: true}) == nil {
				_ = l.stream.CloseSend() // the master ends the stream when it has read that
			}
			return
		case <-w.wake:
			urgent = true
		case <-tick.C:
		}
		if l.stale() {
			w.nudge() // it is for the next link
			return
		}
		m := w.news()
		if m == nil && !urgent && time.Since(last) < l.lease/4-flush {
			continue
		}
		if m == nil {
			m = &api.WorkerMessage{}
		}
		if err := l.send(m); err != nil {
			l.cancel(nil) // Recv has the reason, and the next link gets all once more
			return
		}
		last = time.Now()
	}
}

// news is what was not told yet, nil if nothing.
func (w *Worker) news() *api.WorkerMessage {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &api.WorkerMessage{Draining: w.draining, Dropped: w.dropped, Spreaded: w.casts.news()}
	m.Members, m.Formed = w.gangs.news(false)
	w.dropped = nil
	for _, a := range w.attempts {
		if a.fresh {
			a.fresh = false
			m.Progress = append(m.Progress, a.progress())
		}
		for _, o := range a.lost {
			if !o.told {
				o.told = true
				m.Lost = append(m.Lost, o.lost)
			}
		}
	}
	if len(m.Progress) == 0 && len(m.Lost) == 0 && len(m.Dropped) == 0 && len(m.Spreaded) == 0 && len(m.Members) == 0 && len(m.Formed) == 0 {
		return nil
	}
	return m
}

// handle does what the master says. It does not wait for anything. The order is the one in
// which the master speaks: what it stops, moves and forgets may be what it launches in the same breath.
func (w *Worker) handle(m *api.MasterMessage) {
	for _, l := range m.GetLaunch() {
		w.launch(l)
	}
	for _, s := range m.GetStop() {
		w.stop(s.GetAttempt(), s.GetReason())
	}
	for _, r := range m.GetRelocate() {
		w.relocate(r)
	}
	for _, s := range m.GetSpread() {
		w.casts.order(s)
	}
	for _, o := range m.GetSpreadOver() {
		// Closing what has come may wait for a write.
		w.wg.Go(w.blobs.sourceGone(o.GetJob(), o.GetBlob()))
	}
	for _, o := range m.GetGangBreak() {
		w.gangs.leaveGroup(o)
	}
	for _, o := range m.GetGangForm() {
		w.gangs.form(o)
	}
	for _, o := range m.GetGangGroup() {
		w.gangs.enter(o)
	}
	for _, o := range m.GetGangOver() {
		w.gangs.over(o)
	}
	for _, job := range m.GetForget() {
		w.forget(job)
	}
	if m.GetDrain() {
		w.mu.Lock()
		w.draining, w.may = true, true
		w.mu.Unlock()
		w.nudgeIdle()
	}
}

func (w *Worker) stop(at *api.Attempt, reason string) {
	w.mu.Lock()
	a := w.attempts[keyOf(at)]
	w.mu.Unlock()
	if a != nil {
		w.opt.Log.Debug("attempt stopped", "attempt", a.key, "reason", reason)
		a.cancel(fmt.Errorf("%w: %s", errStopped, reason))
	}
}

// forget drops all of a job but its logs, and tells when it is done.
func (w *Worker) forget(job string) {
	w.casts.forget(job)
	w.gangs.forget(job)
	w.mu.Lock()
	var all []*attempt
	for k, a := range w.attempts {
		if k.job == job {
			a.cancel(fmt.Errorf("%w: its job has ended", errStopped))
			all = append(all, a)
		}
	}
	w.mu.Unlock()
	w.wg.Go(func() {
		for _, a := range all {
			<-a.over
		}
		w.drop(job)
		w.mu.Lock()
		if !slices.Contains(w.dropped, job) {
			w.dropped = append(w.dropped, job)
		}
		w.mu.Unlock()
		w.nudge()
	})
}

func (w *Worker) drop(job string) {
	w.blobs.forget(job) // first, so that nothing more of it is taken
	w.ex.dropBroadcasts(job)
	if err := w.ex.Drop(job); err != nil {
		w.opt.Log.Warn("map outputs stay until this worker ends", "job", job, "error", err)
	}
}

func (w *Worker) relocate(r *api.Relocate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.attempts[keyOf(r.GetReader())]; a != nil && r.GetOutput() != nil {
		delete(a.lost, r.GetOutput().GetTask())
		a.moves.add(r.GetOutput())
	}
}

// fetchBlob asks the master for a blob, from an offset on.
func (w *Worker) fetchBlob(ctx context.Context, digest string, offset int64, to io.Writer) error {
	l, err := w.current(ctx)
	if err != nil {
		return err
	}
	stream, err := l.client.GetBlob(ctx, &api.GetBlobRequest{Digest: digest, Offset: offset})
	if err != nil {
		return blobError(ctx, err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return blobError(ctx, err)
		}
		if _, err := to.Write(m.GetData()); err != nil {
			return err
		}
	}
}
