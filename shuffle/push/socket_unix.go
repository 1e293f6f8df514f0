// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package push

import "syscall"

const errTooLarge = syscall.EMSGSIZE
