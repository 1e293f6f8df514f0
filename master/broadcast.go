// SPDX-License-Identifier: Apache-2.0

package master

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/journal"
)

// When a job's map stage begins, nearly all of its workers need the same bytes: the program, uploads, side inputs. The
// worker that made the plan has them all, so it is ordered to give them to the others by broadcast. This is
// worth having and nothing more: whoever gets nothing fetches from the master. So each broadcast is ordered once, by the
// master that took the plan; one that fails, or whose source goes, is not ordered again, and a master that is
// started anew expects none.

const (
	// spreadFrom is the size in bytes from which a blob is worth a broadcast. What is smaller comes from the master in one
	// message of a connection that is there already, which costs no more than opening a region at each member.
	spreadFrom = 64 << 10
	// maxSpreads is how many broadcasts a job gets. Each is named in every launch while it is under way, and a job may
	// have thousands of small uploads.
	maxSpreads = 64
	// maxMembers is what a broadcast can have: 64 chains of 64 members.
	maxMembers = 64 * 64
	// membersPerTask bounds the members by the tasks of a job: no more workers than it has tasks will ever need a
	// blob, and nobody knows which they will be. Beyond this, most of a broadcast is for nobody.
	membersPerTask = 4
	// comingAtLeast, and a second for each comingRate bytes ahead of its end, is how long a broadcast is worth waiting
	// for. One that takes longer is no faster than the master would be at a tenth of a usual link.
	comingAtLeast = 5 * time.Second
	comingRate    = 16 << 20
)

// spread is a broadcast that this master has ordered.
type spread struct {
	order   *api.Spread
	source  string          // worker
	members map[string]bool // workers; those that moved since are not in it
	until   time.Duration   // by the clock: afterwards nobody is told to wait for it
	over    bool            // it is reported, or will never be
	gone    bool            // it is over since its source is gone
}

// part is a blob that all tasks of a job need.
type part struct {
	digest, name string
	size         int64
	mapped       bool
}

// parts lists the blobs that are worth a broadcast, in the order in which they are: the program first, since nothing
// begins without it, then the largest ones.
func (m *Master) parts(j *job) []part {
	var first, list []part
	seen := map[string]bool{}
	if d := j.submit.GetProgram().GetBlob(); d != "" {
		size, err := m.blobs.Size(d)
		if err != nil {
			m.log.Warn("a job's program can't be looked at", "job", j.rec.ID, "error", err)
		}
		if seen[d] = true; size >= spreadFrom {
			first = append(first, part{d, "program", size, false})
		}
	}
	for _, u := range j.submit.GetUploads() {
		list = append(list, part{u.Blob, "upload " + u.Path, u.Size, false})
	}
	for i := range j.plan.Result.SideInputs {
		s := &j.plan.Result.SideInputs[i]
		list = append(list, part{s.Digest, "side input " + s.Name, s.Size, true})
	}
	list = slices.DeleteFunc(list, func(p part) bool {
		// Of the same content under several names the first counts: a file serves as a side input, too.
		again := seen[p.digest]
		seen[p.digest] = true
		return again || p.size < spreadFrom
	})
	slices.SortStableFunc(list, func(a, b part) int { return cmp.Compare(b.size, a.size) })
	list = append(first, list...)
	return list[:min(len(list), maxSpreads)]
}

// audience lists the workers beside the source that may get tasks of a job now, by id.
func (m *Master) audience(j *job, source *worker) []*worker {
	spec := j.spec()
	var list []*worker
	for _, w := range m.workers {
		h := w.hello
		switch {
		case w == source, w.session == nil, !w.up, w.suspected, w.draining, w.left, w.aside > m.clock.now():
		case spec.Platform != "" && spec.Platform != h.Platform:
		case h.Memory > 0 && spec.TaskMemory > h.Memory:
		default:
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b *worker) int { return cmp.Compare(a.id, b.id) })
	return list
}

// broadcast orders the broadcasts of a job whose plan was just taken.
func (m *Master) broadcast(j *job) {
	source := m.workers[j.plan.Worker]
	if source == nil || source.session == nil || source.draining || source.left {
		return // it would be gone in the middle
	}
	parts := m.parts(j)
	if len(parts) == 0 {
		return
	}
	audience := m.audience(j, source)
	tasks := len(j.plan.Result.Splits) + j.plan.Result.Partitions
	if n := len(audience); n == 0 || n > maxMembers || n > membersPerTask*tasks {
		return
	}
	var to []*api.SpreadMember
	for _, w := range audience {
		to = append(to, &api.SpreadMember{Worker: w.id, Address: w.hello.Address, Name: short(w.hello.Name, maxName)})
	}
	constants := j.constants()
	until, ahead := m.clock.now()+comingAtLeast, int64(0)
	for _, p := range parts {
		id, err := newID()
		if err != nil {
			m.log.Error("a broadcast can't be named", "job", j.rec.ID, "error", err)
			return
		}
		ahead += p.size
		sp := &spread{
			order: &api.Spread{
				Id: id, Job: j.rec.ID, Constants: constants, Blob: p.digest, Size: p.size, Mapped: p.mapped, Name: p.name, Members: to,
			},
			source: source.id, members: map[string]bool{}, until: until + time.Duration(float64(ahead)/comingRate*float64(time.Second)),
		}
		for _, w := range audience {
			sp.members[w.id] = true
		}
		j.spreads = append(j.spreads, sp)
		source.session.spread(sp.order)
	}
	m.log.Info("broadcasts are ordered", "job", j.rec.ID, "source", source.id, "members", len(to), "blobs", len(parts), "bytes", ahead)
}

// coming lists the blobs that a broadcast brings to a worker, as far as is known.
func (m *Master) coming(j *job, w *worker) (digests []string) {
	now := m.clock.now()
	for _, sp := range j.spreads {
		if sp.over || now >= sp.until || !sp.members[w.id] {
			continue
		}
		if s := m.workers[sp.source]; s == nil || s.session == nil || s.suspected {
			continue
		}
		digests = append(digests, sp.order.Blob)
	}
	return digests
}

// spreaded takes what a worker reports of a broadcast. It is the job's to show, and no more. What the journal
// is to have of it is returned; nil if it is nothing new.
func (m *Master) spreaded(w *worker, r *api.Spreaded) journal.Entry {
	j := m.jobs[r.GetJob()]
	if j == nil || j.plan == nil || j.history != nil {
		return nil // it took longer than the job
	}
	for _, known := range j.broadcasts {
		if known.Id == r.Id {
			return nil
		}
	}
	name, size := r.Name, r.Size
	at := slices.IndexFunc(j.spreads, func(sp *spread) bool { return sp.order.Id == r.Id })
	switch {
	case at >= 0:
		sp := j.spreads[at]
		if sp.source != w.id {
			return nil
		}
		sp.over = true
		name, size = sp.order.Name, sp.order.Size
	case !j.restored, w.id != j.plan.Worker, len(j.broadcasts) >= maxSpreads:
		return nil // nobody has ordered it
	}
	return m.keepReport(j, &api.Spreaded{
		Id: short(r.Id, maxName), Job: j.rec.ID, Name: short(name, maxName), Size: max(size, 0),
		Reached: r.Reached, Had: r.Had, Failed: r.Failed, Kernel: min(r.Kernel, r.Reached), Sent: max(r.Sent, 0), ElapsedUs: max(r.ElapsedUs, 0),
		Error: short(r.Error, maxName),
	})
}

// short cuts what people read to a bearable length. Half a letter at its end would be no text, which can't be sent.
func short(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }

// maxBrief bounds the texts of a report in a list of jobs, in bytes. There may be maxSpreads reports
// of each of maxListed jobs, and all of them are one message.
const maxBrief = 120

// briefly returns reports as a list of jobs has them.
func briefly(reports []*api.Spreaded) []*api.Spreaded {
	for i, r := range reports {
		if len(r.Id) <= maxBrief && len(r.Name) <= maxBrief && len(r.Error) <= maxBrief {
			continue
		}
		r = proto.CloneOf(r)
		r.Id, r.Name, r.Error = short(r.Id, maxBrief), short(r.Name, maxBrief), short(r.Error, maxBrief)
		reports[i] = r
	}
	return reports
}

// keepReport notes how a broadcast ended.
func (m *Master) keepReport(j *job, r *api.Spreaded) journal.Entry {
	j.broadcasts = append(j.broadcasts, r)
	j.touch()
	level := m.log.Info
	if r.Error != "" {
		level = m.log.Warn
	}
	level("a broadcast has ended", "job", j.rec.ID, "name", r.Name, "bytes", r.Size, "reached", r.Reached, "had", r.Had, "failed", r.Failed,
		"kernel", r.Kernel, "sent", r.Sent, "us", r.ElapsedUs, "error", r.Error)
	b, err := proto.Marshal(r)
	if err != nil {
		m.log.Error("a report can't be encoded", "job", j.rec.ID, "error", err)
		return nil
	}
	return journal.Broadcast{Job: j.rec.ID, Number: uint32(len(j.broadcasts) - 1), Report: b}
}

// sourceGone notes that a worker does not go on with its broadcasts, and tells their members: they would wait until they
// have heard nothing for long.
func (m *Master) sourceGone(w *worker) {
	var entries []journal.Entry
	for _, j := range m.jobs {
		if j.history != nil {
			continue
		}
		for _, sp := range j.spreads {
			if sp.over || sp.source != w.id {
				continue
			}
			sp.over, sp.gone = true, true
			for _, to := range sp.order.Members {
				if s := m.sessionOf(to.Worker); s != nil {
					s.spreadOver(sp.order)
				}
			}
			e := m.keepReport(j, &api.Spreaded{
				Id: sp.order.Id, Job: j.rec.ID, Name: sp.order.Name, Size: sp.order.Size, Failed: uint32(len(sp.order.Members)),
				Error: fmt.Sprintf("worker %s, which was to send it, is gone: the others fetch it themselves", w.hello.Name),
			})
			if e != nil {
				entries = append(entries, e)
			}
		}
	}
	m.writeReports(entries)
}

// writeReports writes reports down. That they are lost in a restart would do no harm.
func (m *Master) writeReports(entries []journal.Entry) {
	if len(entries) == 0 {
		return
	}
	if err := m.write(entries...); err != nil {
		m.log.Warn("how broadcasts ended is not in the journal", "error", err)
	}
}

// spreadAgain tells a worker that has come back of the broadcasts that it may not have heard of, and of those to it whose source
// has gone meanwhile. To others, one that has moved can't be reached by those that are under way.
func (m *Master) spreadAgain(w *worker, s *session, moved bool) {
	now := m.clock.now()
	for _, j := range m.jobs {
		if j.history != nil {
			continue
		}
		for _, sp := range j.spreads {
			switch {
			case sp.gone:
				if slices.ContainsFunc(sp.order.Members, func(to *api.SpreadMember) bool { return to.Worker == w.id }) {
					s.spreadOver(sp.order)
				}
			case sp.over || now >= sp.until:
			case sp.source == w.id:
				s.spread(sp.order)
			case moved:
				delete(sp.members, w.id)
			}
		}
	}
}

// jobOver says whether workers may drop what they have of a job.
func (m *Master) jobOver(id string) bool {
	j := m.job(id)
	return j == nil || j.history != nil && !j.left
}

// forgetAll tells all workers that they may drop what they have of a job. The scheduler tells those that ran something of it;
// others may have got something by a broadcast, and after a restart nobody knows who. Those that are gone, and come back,
// say themselves which jobs they have something of.
func (m *Master) forgetAll(j *job) {
	if len(j.spreads) == 0 && !j.restored {
		return
	}
	for _, w := range m.workers {
		if w.session != nil {
			w.session.forgetJob(j.rec.ID)
			continue
		}
		w.owed = append(w.owed, j.rec.ID)
	}
}
