// SPDX-License-Identifier: Apache-2.0

//go:build race

package chaos

// raceDetector says that tests look for races; then all processes do.
const raceDetector = true
