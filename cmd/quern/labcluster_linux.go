// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/labcluster"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle/scratch"
)

// labFolderPrefix is what the names of the folders of labs' clusters begin with.
const labFolderPrefix = "quern-lab-"

// Times of a lab's cluster: machines may be slow.
const (
	labStart = 2 * time.Minute  // until all workers are there
	labStop  = 20 * time.Second // until a process has stopped
)

// labCluster is the cluster of a lab; nil: there is none.
type labCluster struct {
	*labcluster.Cluster
	folder *scratch.Folder
	logs   string // kept there; "": only if something fails
}

// startLabCluster starts a cluster and waits until all workers attend. What it returns is to
// be stopped and removed also if there is an error.
func (a *app) startLabCluster(ctx context.Context, lab *netlab.Lab, f *labClusterFlags, say func(string, ...any)) (*labCluster, error) {
	if f.none {
		return nil, nil
	}
	if err := sweepLabClusters(); err != nil {
		return nil, err
	}
	quern, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the executable to start on the hosts: %w", err)
	}
	c := &labCluster{}
	if f.logs != "" {
		if c.logs, err = filepath.Abs(f.logs); err == nil {
			err = os.MkdirAll(c.logs, 0o755)
		}
		if err != nil {
			return nil, fmt.Errorf("make the folder of the logs: %w", err)
		}
	}
	if c.folder, err = scratch.New("", labFolderPrefix); err != nil {
		return nil, fmt.Errorf("make a folder for the cluster: %w", err)
	}
	c.Cluster, err = labcluster.New(lab, labcluster.Options{
		Quern: quern, Dir: c.folder.Path(), Logs: c.logs, Slots: f.slots, Shuffle: f.shuffle, Environ: a.environ,
	})
	if err != nil {
		return c, err
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, labStart)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		return c, err
	}
	o := c.Options()
	say("lab: a master and %s of %s each, shuffle %s; ready in %v", count(int64(len(o.Workers)), "worker"), count(int64(o.Slots), "slot"), o.Shuffle, time.Since(begin).Round(time.Millisecond))
	return c, nil
}

// environment tells the command where the cluster is.
func (c *labCluster) environment() []string {
	if c == nil {
		return nil
	}
	return c.Environment()
}

// stop ends the cluster. Unless all is well, its logs are kept, and it returns where.
func (c *labCluster) stop(well bool) (logs string, err error) {
	if c == nil || c.Cluster == nil {
		return "", nil
	}
	troubles := c.Troubles()
	err = c.Stop(labStop)
	if len(troubles) > 0 {
		err = errors.Join(fmt.Errorf("what ended before its time: %s", strings.Join(troubles, ", ")), err)
	}
	if well && err == nil {
		return "", nil
	}
	if c.logs == "" {
		var keepErr error
		c.logs, keepErr = c.keepLogs()
		err = errors.Join(err, keepErr)
	}
	return c.logs, err
}

// keepLogs moves the logs out of the folder that goes.
func (c *labCluster) keepLogs() (string, error) {
	kept, err := os.MkdirTemp("", "quern-logs-")
	if err != nil {
		return "", fmt.Errorf("keep the logs: %w", err)
	}
	for _, p := range c.Processes() {
		text, err := os.ReadFile(p.Log)
		if err == nil {
			err = os.WriteFile(filepath.Join(kept, filepath.Base(p.Log)), text, 0o644)
		}
		if err != nil {
			return "", fmt.Errorf("keep the logs: %w", err)
		}
	}
	return kept, nil
}

// remove takes the cluster's folder away, after the lab.
func (c *labCluster) remove() error {
	if c == nil || c.folder == nil {
		return nil
	}
	// A worker that was killed has left its programs' pins, in a file system of their own.
	err := cleanKernel(c.folder.Path())
	if err = errors.Join(err, c.folder.Close()); err != nil {
		return fmt.Errorf("remove the cluster's folder: %w", err)
	}
	return nil
}

// cleanKernel removes what workers that are gone have left of programs, below a lab's folder.
func cleanKernel(folder string) error {
	workers, err := filepath.Glob(filepath.Join(folder, "worker-*"))
	for _, w := range workers {
		_, cleanErr := bpf.CleanAll(w)
		err = errors.Join(err, cleanErr)
	}
	return err
}

// sweepLabClusters removes the folders of clusters whose lab was killed.
func sweepLabClusters() error {
	folders, err := filepath.Glob(filepath.Join(os.TempDir(), labFolderPrefix+"*"))
	for _, f := range folders {
		// Of a worker that lives, it touches nothing.
		err = errors.Join(err, cleanKernel(f))
	}
	f, newErr := scratch.New("", labFolderPrefix) // which sweeps
	if newErr == nil {
		newErr = f.Close()
	}
	if err = errors.Join(err, newErr); err != nil {
		return fmt.Errorf("remove the folders of labs that were killed: %w", err)
	}
	return nil
}
