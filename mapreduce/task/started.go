// SPDX-License-Identifier: Apache-2.0

package task

import "os"

// started is looked up before anybody can have called Attach.
var started = os.Getenv(Env) != ""

// Started says whether this process was started as a task, or is driven. Attach
// makes no difference to it.
func Started() bool { return started }
