// SPDX-License-Identifier: Apache-2.0

package jobs

var definitions = []Definition{}
