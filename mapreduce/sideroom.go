// SPDX-License-Identifier: Apache-2.0

package mapreduce

import "context"

type roomKey struct{}

// sideRoom is what the source of a side input can ask and tell by its context.
type sideRoom struct {
	bytes int64
	note  func(text string)
}

// SideRoom returns how many bytes the side input may have whose [ReaderSource] is being
// opened with ctx: what the memory budget of the job's tasks leaves, or what is left of the
// cluster's limit for the side inputs of a job if that is less. A program that makes its
// side input can look at it and make a smaller one. It is 0 if ctx is any other.
func SideRoom(ctx context.Context) int64 {
	room, _ := ctx.Value(roomKey{}).(sideRoom)
	return room.bytes
}

// SideNote adds to the notes that the user is told once at the end (Result.Notes), while a
// [ReaderSource] is being opened with ctx: what came of making the side input, say. Nobody is
// told if ctx is any other.
func SideNote(ctx context.Context, text string) {
	if room, ok := ctx.Value(roomKey{}).(sideRoom); ok {
		room.note(text)
	}
}

// withRoom has SideRoom return limit, but no more than the records leave of the budget.
func (e *engine) withRoom(ctx context.Context, limit int64) context.Context {
	return context.WithValue(ctx, roomKey{}, sideRoom{
		bytes: max(0, min(limit, e.mem.budget-MinMemory)),
		note: func(text string) {
			e.runsMu.Lock()
			defer e.runsMu.Unlock()
			e.notes = append(e.notes, text)
		},
	})
}
