// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"

	"github.com/quernmr/quern/internal/netlab"
)

// labCluster is the cluster of a lab; there is none on this system.
type labCluster struct{}

func (a *app) startLabCluster(context.Context, *netlab.Lab, *labClusterFlags, func(string, ...any)) (*labCluster, error) {
	return nil, nil
}

func (c *labCluster) environment() []string     { return nil }
func (c *labCluster) stop(bool) (string, error) { return "", nil }
func (c *labCluster) remove() error             { return nil }
func sweepLabClusters() error                   { return nil }
