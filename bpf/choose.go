// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// leastMTU is what a frame takes with the headers of IPv6 and UDP. Below it all frames
// go over the control plane, and the kernel has nothing to fold.
const leastMTU = 40 + 8 + wire.FrameSize

// Choose opens a Host if mode is KernelOnly, or if it is Auto and that can be done; else
// it returns nil, and user space folds. why says in one line what was chosen and why. An
// error comes only with KernelOnly, and for options that can't be.
func Choose(mode shuffle.Mode, o Options) (k shuffle.Kernel, why string, err error) {
	if mode == shuffle.UserOnly {
		return nil, "user space folds, as asked", nil
	}
	if err := o.EnsureDefaults().Validate(); err != nil {
		return nil, "", err
	}
	if len(o.Interfaces) == 0 {
		if mode == shuffle.KernelOnly {
			return nil, "", errors.New("the kernel shall fold, and " + noInterface)
		}
		return nil, "user space folds: " + noInterface, nil
	}
	h, err := Open(o)
	forgets := errors.Is(err, errNoMount)
	if forgets {
		o.Dir = ""
		h, err = Open(o)
	}
	if err == nil && h.MTU() < leastMTU {
		err = errors.Join(fmt.Errorf("the MTU of %s is %d, and frames take %d, so that none would come this way: raise it to 1500, if the whole path carries that", h, h.MTU(), leastMTU), h.Close())
	}
	if err != nil {
		if mode == shuffle.KernelOnly {
			return nil, "", err
		}
		return nil, "user space folds: " + oneLine(err), nil
	}
	reason := "it can"
	if mode == shuffle.KernelOnly {
		reason = "as asked"
	}
	switch {
	case h.Resumed():
		reason += ", and goes on where an earlier process stopped"
	case forgets:
		reason += "; a restart begins anew, since keeping state needs CAP_SYS_ADMIN"
	case h.Note() != "":
		reason += "; " + h.Note()
	}
	if _, err := h.Broadcasts(); err != nil {
		reason += "; " + oneLine(err)
	}
	return h, fmt.Sprintf("the kernel folds on %s: %s", h, reason), nil
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
