// SPDX-License-Identifier: Apache-2.0

package master

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/blobs"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

const (
	// watchEvery is how often Watch sends at most.
	watchEvery = 200 * time.Millisecond
	// maxListed is how many jobs one answer of Jobs has at most.
	maxListed = 1000
	// tasksPage is how many attempts a page of Tasks has.
	tasksPage = 500
	// chunkSize is how many bytes of a blob a message has.
	chunkSize = 256 << 10
	// maxDigests bounds the digests of one HasBlobs.
	maxDigests = 100_000
)

type clusterService struct {
	api.UnimplementedClusterServer
	m *Master
}

// About implements api.ClusterServer.
func (c clusterService) About(ctx context.Context, _ *api.AboutRequest) (*api.AboutReply, error) {
	r := &api.AboutReply{Cluster: c.m.Cluster(), Version: c.m.opts.Version, Protocol: api.Protocol, Epoch: c.m.Epoch()}
	return r, c.m.do(ctx, func() {
		for _, w := range c.m.workers {
			if w.session != nil {
				r.Workers++
				r.Slots += w.hello.Slots
			}
		}
	})
}

func idBytes(id string) []byte {
	b, _ := hex.DecodeString(id) // ids are made by newID
	return b
}

func newID() (string, error) {
	var b [16]byte
	_, err := rand.Read(b[:])
	return hex.EncodeToString(b[:]), err
}

func submitKey(user, key string) string { return user + "\x00" + key }

// checkSubmit says what is wrong with a submission that can be seen from itself.
func (m *Master) checkSubmit(r *api.SubmitRequest) error {
	if r.Protocol != api.Protocol {
		return status.Errorf(codes.FailedPrecondition, "the client speaks version %d of the cluster's protocol and the master version %d: use the master's version of quern (%s)", r.Protocol, api.Protocol, m.opts.Version)
	}
	p, l := r.Program, &m.opts.Limits
	if p == nil || (p.JobFile == "") == (p.Blob == "") {
		return status.Error(codes.InvalidArgument, "a job is a job file or a program: give one of the two")
	}
	if len(p.JobFile) > l.JobFile {
		return status.Errorf(codes.InvalidArgument, "the job file has %d bytes, the master takes at most %d", len(p.JobFile), l.JobFile)
	}
	if p.JobFile != "" && r.Version != m.opts.Version {
		return status.Errorf(codes.FailedPrecondition, "the client is quern %s and the cluster %s: ready-made jobs are run by the workers' own quern, so submit them with the same version", r.Version, m.opts.Version)
	}
	if p.Blob != "" {
		if err := blobs.Check(p.Blob); err != nil {
			return status.Errorf(codes.InvalidArgument, "program: %v", err)
		}
		if p.Platform == "" {
			return status.Error(codes.InvalidArgument, "a program needs its platform (GOOS/GOARCH)")
		}
	}
	size := len(p.Dir) + len(p.Name)
	for _, a := range [][]string{p.Args, p.Environment} {
		for _, s := range a {
			size += len(s) + 1
		}
	}
	if size > l.Arguments {
		return status.Errorf(codes.InvalidArgument, "arguments and environment have %d bytes, the master takes at most %d; put large values into a file", size, l.Arguments)
	}
	for _, e := range p.Environment {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.ContainsRune(e, 0) {
			return status.Errorf(codes.InvalidArgument, "environment %.80q: give NAME=value", e)
		}
	}
	if len(r.Key) > maxName || len(p.Name) > maxName || len(p.Platform) > maxName {
		return status.Errorf(codes.InvalidArgument, "key, name and platform of a job have at most %d bytes", maxName)
	}
	if n := len(p.Earlier); n != int(p.Call) {
		return status.Errorf(codes.InvalidArgument, "call %d of the program comes with the results of %d calls before it", p.Call, n)
	}
	if r.TaskMemory < 0 || r.TaskTimeoutMs < 0 || r.MaxAttempts > 1000 {
		return status.Error(codes.InvalidArgument, "memory and time of a task can't be negative, and a task is tried at most 1000 times")
	}
	switch r.Shuffle {
	case "", "auto", "kernel", "user":
	default:
		return status.Errorf(codes.InvalidArgument, "%.80q is no shuffle mode (auto, kernel, user)", r.Shuffle)
	}
	if len(r.Uploads) > l.Uploads {
		return status.Errorf(codes.InvalidArgument, "%d uploaded files, the master takes at most %d; put them into one, or on a shared file system", len(r.Uploads), l.Uploads)
	}
	for _, u := range r.Uploads {
		if u.Path == "" || u.Size < 0 {
			return status.Error(codes.InvalidArgument, "an upload needs a path")
		}
		if err := blobs.Check(u.Blob); err != nil {
			return status.Errorf(codes.InvalidArgument, "upload %s: %v", u.Path, err)
		}
	}
	return m.checkBlobs(r)
}

// checkBlobs says which blobs of a submission are missing, and keeps the others from being collected.
func (m *Master) checkBlobs(r *api.SubmitRequest) error {
	need := map[string]string{}
	if r.Program.Blob != "" {
		need[r.Program.Blob] = "the program"
	}
	for _, u := range r.Uploads {
		need[u.Blob] = u.Path
	}
	for digest, what := range need {
		switch ok, err := m.blobs.Has(digest); {
		case err != nil:
			return status.Errorf(codes.Internal, "%v", err)
		case !ok:
			return status.Errorf(codes.FailedPrecondition, "%s is not at the master (blob %s): store it first", what, digest)
		}
	}
	for _, u := range r.Uploads {
		size, err := m.blobs.Size(u.Blob)
		if err != nil {
			return status.Errorf(codes.Internal, "%v", err)
		}
		if size != u.Size {
			return status.Errorf(codes.InvalidArgument, "upload %s has %d bytes, its blob %d", u.Path, u.Size, size)
		}
	}
	return nil
}

// Submit implements api.ClusterServer.
func (c clusterService) Submit(ctx context.Context, r *api.SubmitRequest) (*api.SubmitReply, error) {
	m := c.m
	user := userOf(ctx)
	if err := m.checkSubmit(r); err != nil {
		m.log.Info("a job is refused", "user", user, "from", caller(ctx), "error", err)
		return nil, err
	}
	rec := journal.Job{Key: r.Key, User: user, Submitted: time.Now(), Secret: make([]byte, 16), Epoch: m.Epoch()}
	_, err := rand.Read(rec.Secret)
	for i := range rec.Seed {
		n, e := random64()
		rec.Seed[i], err = n, errors.Join(err, e)
	}
	id, e := newID()
	rec.ID, err = id, errors.Join(err, e)
	if err == nil {
		rec.Submit, err = proto.Marshal(r)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%v", err)
	}
	if e := m.do(ctx, func() { id, err = m.submit(rec, r) }); e != nil {
		return nil, e
	}
	if err != nil {
		m.log.Info("a job is refused", "user", user, "from", caller(ctx), "error", err)
		return nil, err
	}
	m.log.Info("a job is submitted", "job", id, "name", r.Program.Name, "user", user, "from", caller(ctx))
	return &api.SubmitReply{Job: id}, nil
}

// submit takes a job.
func (m *Master) submit(rec journal.Job, r *api.SubmitRequest) (string, error) {
	if rec.Key != "" {
		if id := m.keys[submitKey(rec.User, rec.Key)]; id != "" {
			return id, nil
		}
	}
	if n := len(m.jobs); n >= m.opts.Limits.Jobs {
		return "", status.Errorf(codes.ResourceExhausted, "%d jobs are running or waiting, as many as the master takes: try again when some have ended", n)
	}
	m.seq++
	rec.Seq = m.seq
	if err := m.write(journal.JobAdded{Job: rec}); err != nil {
		return "", status.Errorf(codes.ResourceExhausted, "the job is not taken: %v", err)
	}
	j := newJob(rec, r)
	m.jobs[rec.ID] = j
	if rec.Key != "" {
		m.keys[submitKey(rec.User, rec.Key)] = rec.ID
	}
	m.apply(schedule.JobAdded{Job: j.spec()})
	return rec.ID, nil
}

// spec is the job for the scheduler. A job file runs anywhere: its program is the worker's own.
func (j *job) spec() schedule.Job {
	platform := ""
	if j.submit.Program.GetBlob() != "" {
		platform = j.submit.Program.Platform
	}
	return schedule.Job{
		Platform: platform,
		ID:       j.rec.ID, Priority: int(j.submit.Priority), MaxSlots: int(j.submit.MaxSlots),
		TaskMemory: j.submit.TaskMemory, MaxAttempts: int(j.submit.MaxAttempts),
	}
}

// find finds a job by its id or the beginning of one. Exactly one of j and h is set.
func (m *Master) find(prefix string) (j *job, h *journal.History, err error) {
	if j := m.jobs[prefix]; j != nil {
		return j, nil, nil
	}
	if h := m.byID[prefix]; h != nil {
		return nil, h, nil
	}
	if prefix == "" {
		return nil, nil, status.Error(codes.InvalidArgument, "give a job's id, or the beginning of one")
	}
	var ids []string
	for id := range m.jobs {
		if strings.HasPrefix(id, prefix) {
			ids = append(ids, id)
		}
	}
	for id := range m.byID {
		if strings.HasPrefix(id, prefix) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	switch len(ids) {
	case 0:
		return nil, nil, status.Errorf(codes.NotFound, "there is no job %.80q: 'quern jobs' lists those there are", prefix)
	case 1:
		return m.jobs[ids[0]], m.byID[ids[0]], nil
	}
	return nil, nil, status.Errorf(codes.InvalidArgument, "%.80q begins %d jobs (%s ...): give more of the id", prefix, len(ids), strings.Join(ids[:2], ", "))
}

// Jobs implements api.ClusterServer. Counters, results and plans are left out: Watch has them.
func (c clusterService) Jobs(ctx context.Context, r *api.JobsRequest) (*api.JobsReply, error) {
	m := c.m
	limit := int(r.Limit)
	if limit == 0 || limit > maxListed {
		limit = maxListed
	}
	reply := &api.JobsReply{}
	var err error
	if e := m.do(ctx, func() { reply.Jobs, err = m.list(limit, r) }); e != nil {
		return nil, e
	}
	return reply, err
}

func (m *Master) list(limit int, r *api.JobsRequest) (list []*api.JobStatus, err error) {
	before := uint64(1<<64 - 1)
	if r.Before != "" {
		j, h, err := m.find(r.Before)
		switch {
		case err != nil:
			return nil, err
		case j != nil:
			before = j.rec.Seq
		default:
			before = h.Seq
		}
	}
	type entry struct {
		seq uint64
		j   *job
		h   *journal.History
	}
	var all []entry
	for _, j := range m.jobs {
		all = append(all, entry{j.rec.Seq, j, nil})
	}
	if !r.RunningOnly {
		for _, h := range m.history {
			all = append(all, entry{h.Seq, nil, h})
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(b.seq, a.seq) })
	for _, e := range all {
		if e.seq >= before {
			continue
		}
		if len(list) == limit {
			break
		}
		var s *api.JobStatus
		if e.j != nil {
			s = m.status(e.j)
		} else if s, err = pastStatus(e.h); err != nil {
			return nil, status.Errorf(codes.DataLoss, "%v", err)
		}
		s.Counters, s.Result, s.Why, s.Notes = nil, nil, nil, nil
		s.Broadcasts = briefly(s.Broadcasts)
		list = append(list, s)
	}
	return list, nil
}

// look returns how a job stands, and what is closed when that changes; nil if it never will.
func (m *Master) look(id string) (s *api.JobStatus, changed <-chan struct{}, err error) {
	j, h, err := m.find(id)
	switch {
	case err != nil:
		return nil, nil, err
	case j != nil:
		return m.status(j), j.wait(), nil
	}
	if s, err = pastStatus(h); err != nil {
		return nil, nil, status.Errorf(codes.DataLoss, "%v", err)
	}
	return s, nil, nil
}

// Watch implements api.ClusterServer.
func (c clusterService) Watch(r *api.WatchRequest, stream grpc.ServerStreamingServer[api.JobStatus]) error {
	m, ctx, id := c.m, stream.Context(), r.Job
	for {
		var s *api.JobStatus
		var changed <-chan struct{}
		var err error
		if e := m.do(ctx, func() { s, changed, err = m.look(id) }); e != nil {
			return e
		}
		if err != nil {
			return err
		}
		id = s.Job
		if err := stream.Send(s); err != nil {
			return err
		}
		if changed == nil {
			return nil
		}
		t := time.NewTimer(watchEvery)
		for _, wait := range []func() error{
			func() error {
				select {
				case <-t.C:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				case <-m.stopping:
					return errStopping
				}
			},
			func() error {
				select {
				case <-changed:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				case <-m.stopping:
					return errStopping
				}
			},
		} {
			if err := wait(); err != nil {
				t.Stop()
				return err
			}
		}
	}
}

// Cancel implements api.ClusterServer. It returns when the job has ended, or shortly before the
// call's deadline with how it stands then.
func (c clusterService) Cancel(ctx context.Context, r *api.CancelRequest) (*api.CancelReply, error) {
	m := c.m
	user := userOf(ctx)
	reason := "cancelled"
	if user != "" {
		reason += " by " + user
	}
	if r.Reason != "" {
		reason += ": " + r.Reason[:min(len(r.Reason), maxName)]
	}
	var id string
	var err error
	if e := m.do(ctx, func() { id, err = m.cancel(r.Job, reason) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	m.log.Info("a job is cancelled", "job", id, "user", user, "from", caller(ctx), "reason", r.Reason)
	deadline, _ := ctx.Deadline() // guardUnary sees to it that there is one
	left := time.Until(deadline)
	t := time.NewTimer(left - min(left/4, time.Second))
	defer t.Stop()
	for {
		var s *api.JobStatus
		var changed <-chan struct{}
		if e := m.do(ctx, func() { s, changed, err = m.look(id) }); e != nil {
			return nil, e
		}
		if err != nil {
			return nil, err
		}
		if changed == nil {
			return &api.CancelReply{Job: s}, nil
		}
		select {
		case <-changed:
		case <-t.C:
			return &api.CancelReply{Job: s}, nil
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-m.stopping:
			return nil, errStopping
		}
	}
}

func (m *Master) cancel(prefix, reason string) (string, error) {
	j, h, err := m.find(prefix)
	switch {
	case err != nil:
		return "", err
	case h != nil:
		return h.ID, nil // it has ended, and the answer says how
	}
	if j.ending == nil && j.commit == nil {
		e := journal.Ending{Reason: reason, Cancelled: true}
		if err := m.write(journal.Ends{Job: j.rec.ID, Ending: e}); err != nil {
			return "", status.Errorf(codes.ResourceExhausted, "the job is not cancelled: %v", err)
		}
		j.ending = &e
		m.apply(schedule.JobCancelled{ID: j.rec.ID, Reason: reason})
		j.touch()
	}
	return j.rec.ID, nil
}

// Tasks implements api.ClusterServer: attempts that are over first, then those that run.
func (c clusterService) Tasks(r *api.TasksRequest, stream grpc.ServerStreamingServer[api.TasksPage]) error {
	m := c.m
	var list []*api.AttemptStatus
	var err error
	if e := m.do(stream.Context(), func() { list, err = m.attempts(r) }); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	for page := range slices.Chunk(list, tasksPage) {
		if err := stream.Send(&api.TasksPage{Attempts: page}); err != nil {
			return err
		}
	}
	return nil
}

func (m *Master) attempts(r *api.TasksRequest) (list []*api.AttemptStatus, err error) {
	j, h, err := m.find(r.Job)
	if err != nil {
		return nil, err
	}
	bad := func(state string) bool { return state == "failed" || state == "lost" }
	if h != nil {
		for _, a := range h.Attempts {
			if !r.FailedOnly || bad(a.State) {
				list = append(list, &api.AttemptStatus{
					Attempt: toAPI(a.Attempt), Worker: a.Worker, State: a.State, Error: a.Error, ElapsedMs: a.Elapsed.Milliseconds(),
				})
			}
		}
		return list, nil
	}
	for _, p := range j.past {
		if r.FailedOnly && !bad(p.state) {
			continue
		}
		s := &api.AttemptStatus{
			Attempt: toAPI(p.attempt), Worker: p.worker, State: p.state, Error: p.err,
			ElapsedMs: p.elapsed.Milliseconds(), Speculative: p.speculative,
		}
		if p.state == "done" {
			s.Done = 1
		}
		list = append(list, s)
	}
	if r.FailedOnly {
		return list, nil
	}
	now := m.clock.now()
	for _, a := range j.sortedRunning() {
		s := &api.AttemptStatus{
			Attempt: toAPI(a.attempt), Worker: a.worker, State: "running", ElapsedMs: (now - a.since).Milliseconds(), Speculative: a.speculative,
		}
		if a.progress != nil {
			s.Done = a.progress.Done
		}
		list = append(list, s)
	}
	return list, nil
}

// Workers implements api.ClusterServer.
func (c clusterService) Workers(ctx context.Context, _ *api.WorkersRequest) (*api.WorkersReply, error) {
	m := c.m
	r := &api.WorkersReply{}
	err := m.do(ctx, func() {
		running := map[string]uint32{}
		for j := range m.allJobs() {
			for _, a := range j.running {
				running[a.worker]++
			}
		}
		for _, w := range m.workers {
			r.Workers = append(r.Workers, m.workerStatus(w, running[w.id]))
		}
		for _, w := range m.gone {
			if m.workers[w.id] == nil {
				r.Workers = append(r.Workers, m.workerStatus(w, 0))
			}
		}
	})
	slices.SortStableFunc(r.Workers, func(a, b *api.WorkerStatus) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Worker, b.Worker))
	})
	return r, err
}

// Drain implements api.ClusterServer.
func (c clusterService) Drain(ctx context.Context, r *api.DrainRequest) (*api.DrainReply, error) {
	m := c.m
	var err error
	if e := m.do(ctx, func() { err = m.drain(r.Worker) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	m.log.Info("a worker is to be drained", "worker", r.Worker, "user", userOf(ctx), "from", caller(ctx))
	return &api.DrainReply{}, nil
}

func (m *Master) drain(name string) error {
	var found []*worker
	for id, w := range m.workers {
		if id == name {
			found = []*worker{w}
			break
		}
		if w.hello.Name == name {
			found = append(found, w)
		}
	}
	if len(found) > 1 {
		// What is left of a process that was killed has its name for the time of its lease.
		if there := slices.DeleteFunc(slices.Clone(found), func(w *worker) bool { return w.session == nil }); len(there) == 1 {
			found = there
		}
	}
	switch {
	case len(found) == 0:
		return status.Errorf(codes.NotFound, "there is no worker %.80q: 'quern workers' lists those there are", name)
	case len(found) > 1:
		return status.Errorf(codes.InvalidArgument, "%d workers have the name %.80q: give an id", len(found), name)
	}
	w := found[0]
	if byName := w.session == nil && name != w.id; !w.draining || byName && !w.byName {
		w.draining, w.byName = true, byName
		m.roll[w.id] = w.hello
		_ = m.write() // it is tried again
		m.apply(schedule.WorkerDrain{ID: w.id})
	}
	return nil
}

// HasBlobs implements api.ClusterServer.
func (c clusterService) HasBlobs(_ context.Context, r *api.HasBlobsRequest) (*api.HasBlobsReply, error) {
	if len(r.Digests) > maxDigests {
		return nil, status.Errorf(codes.InvalidArgument, "%d digests in one question; ask for at most %d", len(r.Digests), maxDigests)
	}
	reply := &api.HasBlobsReply{}
	for _, d := range r.Digests {
		switch ok, err := c.m.blobs.Has(d); {
		case err != nil:
			return nil, blobError(err)
		case !ok:
			reply.Missing = append(reply.Missing, d)
		}
	}
	return reply, nil
}

func blobError(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, blobs.ErrDigest), errors.Is(err, blobs.ErrSize):
		code = codes.InvalidArgument
	case errors.Is(err, blobs.ErrMissing):
		code = codes.NotFound
	case errors.Is(err, blobs.ErrFull):
		code = codes.ResourceExhausted
	}
	return status.Error(code, err.Error())
}

// PutBlob implements api.ClusterServer.
func (c clusterService) PutBlob(stream grpc.ClientStreamingServer[api.BlobChunk, api.PutBlobReply]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := c.m.store(first, stream); err != nil {
		return err
	}
	c.m.log.Info("a blob is stored", "digest", first.Digest, "bytes", first.Size, "user", userOf(stream.Context()))
	return stream.SendAndClose(&api.PutBlobReply{Digest: first.Digest})
}

// store takes a blob of which the first message was read.
func (m *Master) store(first *api.BlobChunk, stream grpc.ClientStreamingServer[api.BlobChunk, api.PutBlobReply]) (err error) {
	w, err := m.blobs.Create(first.Digest, first.Size)
	if err != nil {
		return blobError(err)
	}
	defer func() {
		if e := w.Close(); e != nil {
			m.log.Warn("an unfinished blob is not removed", "error", e)
		}
	}()
	for chunk := first; ; {
		if _, err := w.Write(chunk.Data); err != nil {
			return blobError(err)
		}
		if chunk, err = stream.Recv(); err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := w.Commit(); err != nil {
		return blobError(err)
	}
	return nil
}

// GetBlob implements api.AttendanceServer. The first message has digest and size.
func (a attendance) GetBlob(r *api.GetBlobRequest, stream grpc.ServerStreamingServer[api.BlobChunk]) error {
	// Who asks needs it, or is about to name it: it is not collected now.
	if _, err := a.m.blobs.Has(r.Digest); err != nil {
		return blobError(err)
	}
	f, size, err := a.m.blobs.Open(r.Digest, r.Offset)
	if err != nil {
		return blobError(err)
	}
	defer func() { _ = f.Close() }() // it is only read
	first := &api.BlobChunk{Digest: r.Digest, Size: size}
	if err := stream.Send(first); err != nil {
		return err
	}
	for left := size - r.Offset; left > 0; {
		b := make([]byte, min(left, chunkSize)) // gRPC may keep it
		if _, err := io.ReadFull(f, b); err != nil {
			return status.Errorf(codes.Internal, "blob %s: %v", r.Digest, err)
		}
		left -= int64(len(b))
		if err := stream.Send(&api.BlobChunk{Data: b}); err != nil {
			return err
		}
	}
	return nil
}
