// SPDX-License-Identifier: Apache-2.0

package wire

var reasonNames = [Reasons]string{
	Foreign:       "foreign",
	Malformed:     "malformed",
	BadToken:      "token",
	BadSeq:        "seq",
	BadTag:        "tag",
	Duplicate:     "duplicate",
	UpShape:       "up-shape",
	UpTable:       "up-table",
	UpFull:        "up-full",
	UpChain:       "up-chain",
	Folded:        "folded",
	LostClaim:     "lost-claim",
	Torn:          "torn",
	Answered:      "answered",
	AnswerUp:      "answer-up",
	AnswerFailed:  "answer-failed",
	Probed:        "probed",
	Absorbed:      "absorbed",
	AbsorbedUp:    "absorbed-up",
	AckStray:      "ack-stray",
	AckTag:        "ack-tag",
	UpRegion:      "up-region",
	ChunkTag:      "chunk-tag",
	ChunkPlace:    "chunk-place",
	ChunkBusy:     "chunk-busy",
	Stored:        "stored",
	StoredBefore:  "stored-before",
	PassedOn:      "passed-on",
	ChainAnswered: "chain-answered",
	UpHop:         "up-hop",
	Collected:     "collected",
	CollectedUp:   "collected-up",
	Pumped:        "pumped",
	UpGroup:       "up-group",
	PartTag:       "part-tag",
	PartStray:     "part-stray",
	PartDiffers:   "part-differs",
	PartBefore:    "part-before",
	Added:         "added",
	BlockReduced:  "reduced",
	ResultAgain:   "result-again",
	ResultStored:  "result-stored",
	ResultBefore:  "result-before",
	ResultPassed:  "result-passed",
}

// String returns the reason's name, as docs/protocol.md explains it.
func (r Reason) String() string {
	if r < Reasons {
		return reasonNames[r]
	}
	return "unknown"
}
