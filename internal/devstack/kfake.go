package devstack

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// KfakeOptions says what to start.
type KfakeOptions struct {
	// Dir keeps the records over Restart and over the end of the process; ""
	// is a temporary folder.
	Dir string
	// Sync writes every record through to the disk.
	Sync bool
	// Nodes is the number of fake brokers; 0 means 1.
	Nodes int
	// Extra are passed on, for seeds and limits that tests want.
	Extra []kfake.Opt
}

// Kfake is a broker inside this process, with records on disk. It speaks the
// protocol and takes scripted faults, but enforces no min.insync.replicas, no
// topic settings and no compaction.
type Kfake struct {
	// Cluster is for scripting faults. It is another one after Restart.
	Cluster *kfake.Cluster

	opts  KfakeOptions
	work  *workdir
	ports []int
}

// StartKfake starts it in milliseconds.
func StartKfake(opts KfakeOptions) (*Kfake, error) {
	work, err := newWorkdir(opts.Dir, "kfake")
	if err != nil {
		return nil, err
	}
	k := &Kfake{opts: opts, work: work}
	for tries := 1; ; tries++ {
		if err = k.drawPorts(); err == nil {
			err = k.Start()
		}
		switch {
		case err == nil:
			return k, nil
		case tries == portTries || !errors.Is(err, syscall.EADDRINUSE):
			return nil, errors.Join(err, work.remove())
		}
	}
}

// portTries is how often other ports are drawn where another process was faster.
const portTries = 5

func (k *Kfake) drawPorts() error {
	k.ports = nil
	for range max(1, k.opts.Nodes) {
		port, err := freePort()
		if err != nil {
			return err
		}
		k.ports = append(k.ports, port)
	}
	return nil
}

// Start starts it again after Halt, on the same ports and records.
func (k *Kfake) Start() error {
	if k.Cluster != nil {
		return errors.New("kfake is running already")
	}
	data := k.work.join("data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	opts := []kfake.Opt{kfake.DataDir(data), kfake.Ports(k.ports...), kfake.NumBrokers(len(k.ports))}
	if k.opts.Sync {
		opts = append(opts, kfake.SyncWrites())
	}
	c, err := kfake.NewCluster(append(opts, k.opts.Extra...)...)
	if err != nil {
		return fmt.Errorf("start kfake: %w", err)
	}
	k.Cluster = c
	return nil
}

// Halt cuts every connection and keeps the records.
func (k *Kfake) Halt() {
	if k.Cluster != nil {
		k.Cluster.Close()
		k.Cluster = nil
	}
}

// Restart is Halt and Start.
func (k *Kfake) Restart() error {
	k.Halt()
	return k.Start()
}

// Stop ends it for good and removes a temporary folder.
func (k *Kfake) Stop() error {
	k.Halt()
	return k.work.remove()
}

// Bootstrap lists the brokers' addresses.
func (k *Kfake) Bootstrap() []string {
	var addrs []string
	for _, p := range k.ports {
		addrs = append(addrs, address(p))
	}
	return addrs
}

// Client is a franz-go client for it.
func (k *Kfake) Client(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(k.Bootstrap()...)}, opts...)...)
}
