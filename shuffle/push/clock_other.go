// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package push

import "time"

var start, clockBase = time.Now(), int64(1)
