package doctor

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/postrider/postrider/internal/brokers"
	"github.com/postrider/postrider/publisher"
)

// cluster is what is known of the brokers. They are dialled beside the other checks,
// since one that swallows packets takes its time.
type cluster struct {
	cfg       Config
	transport *brokers.Transport
	faulty    error // of the configuration
	dialling  sync.WaitGroup
	reached   fact[*reached]
	described fact[map[string]*topic]

	// conn is the connection that questions go over, nil until one is put.
	conn *brokers.Conn
}

// reached is what came of connecting.
type reached struct {
	endpoints  []endpoint
	brokers    map[int32]string
	controller int32
	id         string
	// err is why the cluster could not be asked for its brokers.
	err error
}

// endpoint is an address and what came of dialling it.
type endpoint struct {
	addr string
	// bootstrap is false for an address that only a broker has named.
	bootstrap bool
	tls       *tls.ConnectionState
	err       error
}

func newCluster(cfg Config) *cluster {
	k := &cluster{cfg: cfg}
	connection, err := cfg.Kafka.Connection()
	if err != nil {
		k.faulty = err
		return k
	}
	connection.DialTimeout, connection.RequestTimeout = cfg.Timeout, cfg.Timeout
	k.transport = brokers.NewTransport(connection)
	return k
}

// start dials beside the caller.
func (k *cluster) start(ctx context.Context) {
	if k.faulty == nil {
		k.dialling.Go(func() { _, _ = k.reach(ctx) })
	}
}

func (k *cluster) close() {
	k.dialling.Wait()
	if k.transport != nil {
		k.transport.CloseAll()
	}
}

// reach dials every bootstrap address, asks one for the brokers, and dials those.
func (k *cluster) reach(ctx context.Context) (*reached, error) {
	if k.faulty != nil {
		return nil, k.faulty
	}
	return k.reached.get(func() (*reached, error) {
		ctx, cancel := context.WithTimeout(ctx, 3*k.cfg.Timeout)
		defer cancel()
		r := &reached{brokers: map[int32]string{}}
		r.endpoints = k.dial(ctx, k.cfg.Kafka.Brokers, true)
		for i := range r.endpoints {
			if r.endpoints[i].err != nil {
				continue
			}
			if r.err = k.readBrokers(ctx, r, r.endpoints[i].addr); r.err == nil {
				break
			}
		}
		var named []string
		for _, addr := range r.brokers {
			if !r.knows(addr) {
				named = append(named, addr)
			}
		}
		r.endpoints = append(r.endpoints, k.dial(ctx, named, false)...)
		return r, nil
	})
}

func (r *reached) knows(addr string) bool {
	for i := range r.endpoints {
		if r.endpoints[i].addr == addr {
			return true
		}
	}
	return false
}

// good is an address that answers: one that a broker is known by, where there is one.
func (r *reached) good() string {
	addr := ""
	for i := range r.endpoints {
		if r.endpoints[i].err == nil {
			addr = r.endpoints[i].addr
		}
	}
	return addr
}

func (k *cluster) dial(ctx context.Context, addrs []string, bootstrap bool) []endpoint {
	all := make([]endpoint, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		all[i] = endpoint{addr: addr, bootstrap: bootstrap}
		wg.Go(func() {
			conn, err := k.transport.Dial(ctx, addr)
			if all[i].err = err; err == nil {
				all[i].tls = conn.TLS()
				conn.Close()
			}
		})
	}
	wg.Wait()
	return all
}

func (k *cluster) readBrokers(ctx context.Context, r *reached, addr string) error {
	msg, err := k.askAt(ctx, addr, &metadata.Request{TopicNames: []string{}})
	if err != nil {
		return err
	}
	res := msg.(*metadata.Response)
	for _, b := range res.Brokers {
		r.brokers[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	r.controller, r.id = res.ControllerID, res.ClusterID
	return nil
}

// askAt puts one question to an address, over a connection of its own.
func (k *cluster) askAt(ctx context.Context, addr string, req protocol.Message) (protocol.Message, error) {
	conn, err := k.transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return k.exchange(ctx, conn, addr, req)
}

func (k *cluster) exchange(ctx context.Context, conn *brokers.Conn, addr string, req protocol.Message) (protocol.Message, error) {
	stop := context.AfterFunc(ctx, conn.Interrupt)
	defer stop()
	msg, err := conn.RoundTrip(time.Now().Add(k.cfg.Timeout), req)
	if err != nil {
		return nil, k.transport.RequestError(addr, req, k.cfg.Timeout, err)
	}
	return msg, nil
}

// errNoKafka stands for what the check brokers says.
var errNoKafka = needs("Kafka cannot be used (see brokers)")

// ask puts a question to a broker that answers.
func (k *cluster) ask(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	r, err := k.reach(ctx)
	if err != nil {
		return nil, errNoKafka
	}
	addr := r.good()
	if addr == "" || r.err != nil {
		return nil, errNoKafka
	}
	if k.conn == nil {
		if k.conn, err = k.transport.Dial(ctx, addr); err != nil {
			return nil, err
		}
	}
	msg, err := k.exchange(ctx, k.conn, addr, req)
	if err != nil {
		k.conn.Close()
		k.conn = nil
	}
	return msg, err
}

// askController puts a question to the controller, or to any broker where none is known.
func (k *cluster) askController(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	r, err := k.reach(ctx)
	if err != nil {
		return nil, errNoKafka
	}
	if addr := r.brokers[r.controller]; addr != "" {
		return k.askAt(ctx, addr, req)
	}
	return k.ask(ctx, req)
}

// probeProducerID asks a broker that answers, so that one which does not cannot use the
// time up.
func (k *cluster) probeProducerID(ctx context.Context) error {
	r, err := k.reach(ctx)
	if err != nil || r.good() == "" {
		return errNoKafka
	}
	cfg := k.cfg.Kafka
	cfg.Registerer, cfg.Brokers = nil, []string{r.good()}
	cfg.DialTimeout, cfg.RequestTimeout = k.cfg.Timeout, k.cfg.Timeout
	return publisher.ProbeProducerID(ctx, cfg)
}
