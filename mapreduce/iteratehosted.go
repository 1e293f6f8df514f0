// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"encoding/json"
	"fmt"
)

// limit, member and finish make an iteration one that the process of a member on a cluster can run.
func (p *iterationProgram[D]) limit() int {
	f := p.facts()
	return f.limit()
}

func (p *iterationProgram[D]) member(ctx context.Context, e *engine, first, total int, g gang) ([]byte, error) {
	m, err := e.newMember(p, sharesFrom(e.plan, first), total)
	if err != nil {
		return nil, err
	}
	if err := m.takePart(ctx, g); err != nil {
		return nil, err
	}
	return m.final()
}

// final is a member's result, for finish: its state as it is encoded, and the rest as JSON.
func (m *member) final() ([]byte, error) {
	r := m.result()
	r.State = nil
	rest, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return append(m.state.encode(), rest...), nil
}

func (p *iterationProgram[D]) finish(final []byte) (json.RawMessage, error) {
	size, err := stateSize(final)
	if err != nil {
		return nil, err
	}
	s, err := decodeState(final[:size])
	if err != nil {
		return nil, err
	}
	r := &IterationResult{}
	if err := json.Unmarshal(final[size:], r); err != nil {
		return nil, fmt.Errorf("%w: %w", errState, err)
	}
	p.emits(s.numbers)
	if len(s.numbers) <= MaxResultState {
		r.State = s.numbers
	}
	return json.Marshal(r)
}
