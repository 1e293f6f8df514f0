// SPDX-License-Identifier: Apache-2.0

// Package shuffle is how pairs travel from mappers to reducers. It holds what
// the two ends of a stream and the kernel's path agree on; its parts stand in
// folders of their own:
//
//   - shuffle/wire: the format of frames and of memory shared with programs
//   - shuffle/model: what a receiving kernel does, in plain Go
//   - shuffle/commit: committed map output, in hash order, and the frames cut from it
//   - shuffle/push: the sender
//   - shuffle/receive: the receiver
//   - shuffle/fold, shuffle/group: pairs combined or collected per key
//   - shuffle/spill: sorted runs on disk and their merge
//   - shuffle/pairs: records in memory
package shuffle
