package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// KafkaOptions says what to start.
type KafkaOptions struct {
	// Version is "" for DefaultKafka.
	Version string
	// Nodes is the number of processes, each broker and controller; 0 means 1.
	// With more than half of them dead the cluster is without a controller.
	Nodes int
	// MinISR is min.insync.replicas; 0 means one less than the replicas, at least 1.
	MinISR int
	// Settings go into server.properties over the defaults of this package.
	Settings map[string]string
	// Secure asks for SASL_SSL with SCRAM-SHA-512 and PLAIN as the only way in.
	// One node only. Kafka.User, Password and CAFile are what a client needs.
	Secure bool
	// Advertise changes the address under which clients are sent to a node, to
	// lead them through a proxy; it gets the address where the node listens.
	Advertise func(address string) string
	// HeapMB is the Java heap of a node in MiB; 0 means 384.
	HeapMB int
	// Dir is the folder for data and logs, kept at Stop; "" is a temporary one.
	Dir string
}

// Kafka is a running cluster of real brokers. Its methods are for one goroutine
// at a time.
type Kafka struct {
	Version string
	Source  string
	// CAFile, User and Password are set with KafkaOptions.Secure.
	CAFile, User, Password string

	opts  KafkaOptions
	java  string
	jars  string
	work  *workdir
	nodes []*kafkaNode
}

type kafkaNode struct {
	id                   int
	port, controllerPort int
	proc                 *process
}

func (n *kafkaNode) name() string { return "node" + strconv.Itoa(n.id) }

func (n *kafkaNode) running() bool { return n.proc != nil && !n.proc.exited() }

// StartKafka starts a cluster and returns when all nodes answer.
func StartKafka(ctx context.Context, opts KafkaOptions) (*Kafka, error) {
	if opts.Version == "" {
		opts.Version = DefaultKafka
	}
	if opts.Nodes == 0 {
		opts.Nodes = 1
	}
	if opts.Secure && opts.Nodes > 1 {
		return nil, errors.New("a secure cluster has one node")
	}
	java, err := findJava(ctx)
	if err != nil {
		return nil, err
	}
	jars, err := kafkaJars(ctx, opts.Version)
	if err != nil {
		return nil, err
	}
	work, err := newWorkdir(opts.Dir, "kafka")
	if err != nil {
		return nil, err
	}
	k := &Kafka{
		Version: opts.Version, Source: "own jars, Java at " + java,
		opts: opts, java: java, jars: jars, work: work,
	}
	if err := k.bootstrap(ctx); err != nil {
		return nil, errors.Join(err, k.Stop())
	}
	return k, nil
}

func (k *Kafka) bootstrap(ctx context.Context) error {
	if err := k.addNodes(); err != nil {
		return err
	}
	if k.opts.Secure {
		if err := k.secure(); err != nil {
			return err
		}
	}
	if err := os.WriteFile(k.work.join("log4j2.xml"), logConfig, 0o644); err != nil {
		return err
	}
	if err := k.format(ctx); err != nil {
		return err
	}
	return k.Start(ctx)
}

func (k *Kafka) addNodes() error {
	for i := range k.opts.Nodes {
		port, err := freePort()
		if err != nil {
			return err
		}
		controller, err := freePort()
		if err != nil {
			return err
		}
		k.nodes = append(k.nodes, &kafkaNode{id: i + 1, port: port, controllerPort: controller})
	}
	return nil
}

// format writes each node's properties and the first records of its metadata log.
func (k *Kafka) format(ctx context.Context) error {
	id := clusterID()
	group, ctx := errgroup.WithContext(ctx)
	for i, n := range k.nodes {
		if err := os.MkdirAll(k.work.join(n.name()), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(k.propertiesFile(n), []byte(k.properties(i).String()), 0o600); err != nil {
			return err
		}
		args := []string{"kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", id, "-c", k.propertiesFile(n)}
		group.Go(func() error { return k.command(n, append(args, k.scram()...)...).run(ctx) })
	}
	return group.Wait()
}

func (k *Kafka) propertiesFile(n *kafkaNode) string {
	return k.work.join(n.name(), "server.properties")
}

// LogFile is what node i (from 0) printed.
func (k *Kafka) LogFile(i int) string { return k.work.join(k.nodes[i].name(), "kafka.log") }

// command runs a class of the jars. The flags keep a broker small and quick to
// start: the second compiler never pays in a test's lifetime.
func (k *Kafka) command(n *kafkaNode, args ...string) command {
	heap := k.opts.HeapMB
	if heap == 0 {
		heap = 384
	}
	jvm := []string{
		"-Xmx" + strconv.Itoa(heap) + "m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
		"-Dlog4j2.configurationFile=" + k.work.join("log4j2.xml"),
		"-cp", filepath.Join(k.jars, "*"),
	}
	return command{
		name: k.java, args: append(jvm, args...), dir: k.work.join(n.name()), env: os.Environ(),
		logFile: k.work.join(n.name(), "kafka.log"),
		// Its data is not needed any more when we are gone, so it need not end in order.
		orphanSignal: sigKill,
	}
}

// Nodes is the number of nodes, dead ones included.
func (k *Kafka) Nodes() int { return len(k.nodes) }

// Bootstrap lists the brokers' addresses.
func (k *Kafka) Bootstrap() []string {
	var addrs []string
	for _, n := range k.nodes {
		addrs = append(addrs, address(n.port))
	}
	return addrs
}

// NodeID is the broker id of node i.
func (k *Kafka) NodeID(i int) int32 { return int32(k.nodes[i].id) }

// Start starts every node that does not run, on the same ports and data, and
// returns when they all answer.
func (k *Kafka) Start(ctx context.Context) error {
	for i := range k.nodes {
		if err := k.launch(i); err != nil {
			return err
		}
	}
	return k.waitReady(ctx)
}

// StartNode starts node i and returns when every running node answers.
func (k *Kafka) StartNode(ctx context.Context, i int) error {
	if err := k.launch(i); err != nil {
		return err
	}
	return k.waitReady(ctx)
}

func (k *Kafka) launch(i int) error {
	n := k.nodes[i]
	if n.running() {
		return nil
	}
	proc, err := k.command(n, "kafka.Kafka", k.propertiesFile(n)).start()
	if err != nil {
		return err
	}
	n.proc = proc
	return os.WriteFile(k.pidFile(n), []byte(strconv.Itoa(proc.pid)+"\n"), 0o644)
}

func (k *Kafka) pidFile(n *kafkaNode) string { return k.work.join(n.name() + ".pid") }

// waitReady waits until the cluster has a controller and lists every running node.
func (k *Kafka) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("start timed out after %s", startTimeout))
	defer cancel()
	client, err := k.Client(kgo.RetryTimeout(time.Second), kgo.DialTimeout(time.Second), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for i, n := range k.nodes {
		if !n.running() {
			continue
		}
		err := n.proc.waitReady(ctx, "Kafka "+k.Version, k.LogFile(i), func(ctx context.Context) error {
			return registered(ctx, client, int32(n.id))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// registered says whether the cluster has a controller and lists the broker. The
// request is made by hand: kadm answers from the client's cache.
func registered(ctx context.Context, client *kgo.Client, id int32) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	meta, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if meta.ControllerID < 0 {
		return errors.New("the cluster has no controller yet")
	}
	for _, b := range meta.Brokers {
		if b.NodeID == id {
			return nil
		}
	}
	return fmt.Errorf("broker %d is not registered yet", id)
}

// Client is a franz-go client for the cluster: other code than Postrider's own.
func (k *Kafka) Client(opts ...kgo.Opt) (*kgo.Client, error) {
	security, err := k.ClientOptions()
	if err != nil {
		return nil, err
	}
	base := append([]kgo.Opt{kgo.SeedBrokers(k.Bootstrap()...)}, security...)
	return kgo.NewClient(append(base, opts...)...)
}

// Halt stops every node in order (SIGTERM) and keeps the data for Start.
func (k *Kafka) Halt() error {
	var group errgroup.Group
	for i := range k.nodes {
		group.Go(func() error { return k.HaltNode(i) })
	}
	return group.Wait()
}

// HaltNode stops node i in order: it hands its leaderships over first.
func (k *Kafka) HaltNode(i int) error {
	n := k.nodes[i]
	if !n.running() {
		return nil
	}
	defer os.Remove(k.pidFile(n))
	// A paused node would not see the signal.
	return errors.Join(n.proc.signal(sigContinue), n.proc.stop(sigTerminate, 30*time.Second))
}

// Restart stops every node in order and starts them again.
func (k *Kafka) Restart(ctx context.Context) error {
	if err := k.Halt(); err != nil {
		return err
	}
	return k.Start(ctx)
}

// Kill ends node i with SIGKILL.
func (k *Kafka) Kill(i int) error {
	n := k.nodes[i]
	if !n.running() {
		return nil
	}
	defer os.Remove(k.pidFile(n))
	return n.proc.stop(sigKill, 10*time.Second)
}

// Pause stops node i with SIGSTOP: its connections stay open and nothing
// answers.
func (k *Kafka) Pause(i int) error { return k.signal(i, sigStop) }

// Resume lets a paused node go on.
func (k *Kafka) Resume(i int) error { return k.signal(i, sigContinue) }

func (k *Kafka) signal(i int, sig syscall.Signal) error {
	if !k.nodes[i].running() {
		return fmt.Errorf("node %d does not run", i)
	}
	return k.nodes[i].proc.signal(sig)
}

// Stop ends the cluster for good, without ceremony, and removes a temporary
// folder. It tolerates a second call and dead nodes.
func (k *Kafka) Stop() error {
	var errs []error
	if k.opts.Dir != "" { // the data is kept, so it ends in order
		errs = append(errs, k.Halt())
	}
	for i := range k.nodes {
		errs = append(errs, k.Kill(i))
	}
	return errors.Join(append(errs, k.work.remove())...)
}

// String is for the first lines of a test run.
func (k *Kafka) String() string {
	return fmt.Sprintf("Kafka %s (%s) at %s", k.Version, k.Source, strings.Join(k.Bootstrap(), ","))
}
