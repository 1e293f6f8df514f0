// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package push

import "errors"

const segmentation = false

func tune(uintptr, bool) {}

func segmentControl() []byte { return nil }

func setSegment([]byte, int) {}

func refusesSegments(error) bool { return false }

func tooLargeSegments(error) bool { return false }

func tooLarge(err error) bool { return errors.Is(err, errTooLarge) }

func passing(error) bool { return false }
