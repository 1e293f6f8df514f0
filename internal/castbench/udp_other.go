// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package castbench

import "net"

const joinControl = 0

func joinReads(*net.UDPConn) error { return nil }

func cutControl(int) []byte { return nil }

func cutSize(_ []byte, whole int) int { return whole }
