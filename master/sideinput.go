// SPDX-License-Identifier: Apache-2.0

package master

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/blobs"
)

// KeepBlob implements api.AttendanceServer. A blob that no plan names in the end is collected as any other.
func (a attendance) KeepBlob(stream grpc.ClientStreamingServer[api.BlobChunk, api.PutBlobReply]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if limit := a.m.opts.Limits.SideInputs; first.Size > limit {
		return status.Errorf(codes.OutOfRange, "a side input of %d bytes: the master takes at most %d of a job; %s", first.Size, limit, sideInputHint)
	}
	if err := a.m.store(first, stream); err != nil {
		return err
	}
	a.m.log.Info("a worker has stored a blob", "digest", first.Digest, "bytes", first.Size, "from", caller(stream.Context()))
	return stream.SendAndClose(&api.PutBlobReply{Digest: first.Digest})
}

const sideInputHint = "give quern master a larger --side-inputs, or have the job read it as an input"

// checkSideInputs says what makes no sense about the side inputs of a plan.
func checkSideInputs(list []task.SideFile) error {
	if len(list) > task.MaxSideInputs {
		return fmt.Errorf("a plan with %d side inputs; %d are possible", len(list), task.MaxSideInputs)
	}
	names := map[string]bool{}
	for i := range list {
		s := &list[i]
		if err := task.CheckSideName(s.Name); err != nil {
			return fmt.Errorf("side input %.80q: %w", s.Name, err) // no task would take it
		}
		switch {
		case names[s.Name]:
			return fmt.Errorf("two side inputs are called %q", s.Name)
		case s.Size < 0:
			return fmt.Errorf("side input %q has %d bytes", s.Name, s.Size)
		}
		names[s.Name] = true
		if err := blobs.Check(s.Digest); err != nil {
			return fmt.Errorf("side input %q: %w", s.Name, err)
		}
	}
	return nil
}

// tooLarge says which side input is beyond the limit; "" if none is.
func (m *Master) tooLarge(list []task.SideFile) string {
	limit, sum := m.opts.Limits.SideInputs, int64(0)
	for i := range list {
		s := &list[i]
		if s.Size > limit {
			return fmt.Sprintf("side input %q has %d bytes: the master takes at most %d of a job; %s", s.Name, s.Size, limit, sideInputHint)
		}
		if s.Size > math.MaxInt64-sum || sum+s.Size > limit {
			return fmt.Sprintf("side input %q has %d bytes, and with those before it they are more than %d, which is what the master takes of a job; %s", s.Name, s.Size, limit, sideInputHint)
		}
		sum += s.Size
	}
	return ""
}

// lacks says which side input of a plan is not here as it should be; nil if all are. They are not collected soon, either.
func (m *Master) lacks(list []task.SideFile) error {
	for i := range list {
		s := &list[i]
		if ok, err := m.blobs.Has(s.Digest); err != nil {
			return fmt.Errorf("side input %q: %w", s.Name, err)
		} else if !ok {
			return fmt.Errorf("side input %q is not at the master (blob %s)", s.Name, s.Digest)
		}
		size, err := m.blobs.Size(s.Digest)
		if errors.Is(err, blobs.ErrMissing) {
			return fmt.Errorf("side input %q is not at the master (blob %s)", s.Name, s.Digest)
		}
		if err != nil {
			return fmt.Errorf("side input %q: %w", s.Name, err)
		}
		if size != s.Size {
			return fmt.Errorf("side input %q was said to have %d bytes, and its blob has %d", s.Name, s.Size, size)
		}
	}
	return nil
}

// sideInputs are those of a plan for launches.
func sideInputs(list []task.SideFile) []*api.SideInput {
	var all []*api.SideInput
	for i := range list {
		all = append(all, &api.SideInput{Name: list[i].Name, Blob: list[i].Digest, Size: list[i].Size})
	}
	return all
}
