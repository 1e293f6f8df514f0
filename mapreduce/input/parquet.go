// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
)

func (p *Plan) splitParquet(ctx context.Context) error                   { return errors.New("x") }
func (p *Plan) openParquet(ctx context.Context, s Split) (Reader, error) { return nil, errors.New("x") }
