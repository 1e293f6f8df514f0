// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/hashicorp/memberlist"
)

// MaxMeta is the most bytes that an encoded Meta has. Gossip carries no more.
const MaxMeta = memberlist.MetaMaxSize // 512

// maxText bounds the fields of a Meta that name something, in bytes.
const maxText = 128

// The roles of members.
const (
	Master = "master"
	Worker = "worker"
)

// Meta is what a member says of itself.
type Meta struct {
	Role   string `json:"r"`           // Master or Worker
	Worker string `json:"w,omitempty"` // id of a worker's process
	Name   string `json:"n,omitempty"` // for people
	// Control is where the control plane is, host:port. An unspecified host is
	// replaced by the address that the gossip comes from.
	Control string `json:"c"`
	Slots   int    `json:"s,omitempty"`
	Memory  int64  `json:"m,omitempty"` // bytes for attempts; 0: not bounded
	Kernel  string `json:"k,omitempty"` // what its kernel can do, in words; cut to fit
}

// coded is a Meta on the wire.
type coded struct {
	Version int `json:"v"`
	Meta
}

const metaVersion = 1

// Encode returns at most MaxMeta bytes. What of Kernel does not fit is left out.
func (m Meta) Encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	for {
		b, err := json.Marshal(coded{metaVersion, m})
		if err != nil {
			return nil, fmt.Errorf("encode what a member says of itself: %w", err)
		}
		over := len(b) - MaxMeta
		if over <= 0 {
			return b, nil
		}
		if m.Kernel == "" {
			return nil, fmt.Errorf("what a member says of itself takes %d bytes, %d more than there is room for: choose shorter names", len(b), over)
		}
		// No byte is encoded in more than six, so not too much is cut; it may take several rounds.
		m.Kernel = cut(m.Kernel, max(0, len(m.Kernel)-(over+5)/6))
	}
}

// cut returns at most n bytes of a text, and no part of a character.
func cut(s string, n int) string {
	if n >= len(s) {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// DecodeMeta reads what a member says of itself.
func DecodeMeta(b []byte) (Meta, error) {
	if len(b) > MaxMeta {
		return Meta{}, fmt.Errorf("what a member says of itself takes %d bytes, more than %d", len(b), MaxMeta)
	}
	var c coded
	if err := json.Unmarshal(b, &c); err != nil {
		return Meta{}, fmt.Errorf("read what a member says of itself: %w", err)
	}
	if c.Version != metaVersion {
		return Meta{}, fmt.Errorf("a member speaks version %d, we speak %d", c.Version, metaVersion)
	}
	return c.Meta, c.check()
}

func (m Meta) check() error {
	switch {
	case m.Role != Master && m.Role != Worker:
		return fmt.Errorf("a member of role %.40q: there are %s and %s", m.Role, Master, Worker)
	case m.Slots < 0, m.Memory < 0:
		return fmt.Errorf("a member with %d slots and %d bytes", m.Slots, m.Memory)
	case m.Role == Worker && m.Worker == "":
		return errors.New("a worker without an id")
	}
	for _, s := range []string{m.Worker, m.Name, m.Control} {
		if len(s) > maxText {
			return fmt.Errorf("%.20q... is longer than %d bytes", s, maxText)
		}
	}
	for _, s := range []string{m.Worker, m.Name, m.Control, m.Kernel} {
		if !printable(s) {
			return fmt.Errorf("%.40q is not text", s)
		}
	}
	return nil
}

// printable says whether a text may be shown to people as it is.
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return false
		}
	}
	return true
}
