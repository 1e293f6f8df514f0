// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package schedule

import "time"

func processorTime() time.Duration { return 0 }
