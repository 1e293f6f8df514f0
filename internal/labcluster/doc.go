// SPDX-License-Identifier: Apache-2.0

// Package labcluster runs a cluster on the hosts of a lab: a master on the first and
// workers, each a process of the real executable, with certificates, a keyring and a token of
// their own. Quern's lab command starts one, and tests that kill parts of it.
package labcluster
