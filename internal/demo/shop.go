package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// shopTables are the shop's own; its outbox is created by `postrider setup`.
const shopTables = `CREATE SCHEMA shop;
CREATE TABLE shop.customers (
    id text PRIMARY KEY, name text NOT NULL, orders int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);
CREATE TABLE shop.orders (
    id text PRIMARY KEY, customer text NOT NULL REFERENCES shop.customers, total numeric(10,2) NOT NULL,
    state text NOT NULL, version bigint NOT NULL DEFAULT 1);
INSERT INTO shop.customers (id, name)
SELECT 'customer-' || n, (ARRAY['Ada', 'Björn', 'Chloé', 'Đorđe', 'Émile', '藤原'])[1 + n % 6] || ' ' || n
FROM generate_series(1, 40) AS n`

// Shares of transactions, and the pace: four writers of some 80 a second each.
const (
	customers     = 40
	writers       = 4
	pace          = 12 * time.Millisecond
	placeShare    = 0.35
	couponShare   = 0.15 // with a savepoint that is rolled back
	rollbackShare = 0.10
)

// shop is what its writers share.
type shop struct {
	conns      []*pgx.Conn
	tally      *tally
	rolledBack func(eventID string)

	mu     sync.Mutex
	placed int
	open   []string // orders that are on their way
}

func openShop(ctx context.Context, dsn string, t *tally, rolledBack func(string)) (*shop, error) {
	s := &shop{tally: t, rolledBack: rolledBack}
	for range writers {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			s.close()
			return nil, shopError(err)
		}
		s.conns = append(s.conns, conn)
	}
	return s, nil
}

func shopError(err error) error {
	return &operr.Error{Class: operr.Postgres, Op: "write", Subject: "orders", Err: err}
}

func (s *shop) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, c := range s.conns {
		_ = c.Close(ctx) // nothing is in flight
	}
}

// start lets the writers work until the shift ends. They end between two
// transactions, so that it is known of each whether it was committed.
func (s *shop) start(ctx context.Context, crew *crew) *shift {
	working, stop := context.WithCancel(ctx)
	day := &shift{stop: stop}
	for _, conn := range s.conns {
		w := &writer{shop: s, conn: conn}
		day.join(crew, func() error { return w.work(working, ctx) })
	}
	crew.join(func() error {
		day.members.Wait()
		s.close()
		return nil
	})
	return day
}

// nextOrder names a new order.
func (s *shop) nextOrder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.placed++
	return fmt.Sprintf("order-%d", s.placed)
}

// someOrder picks one that is on its way; "" when there is none.
func (s *shop) someOrder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) == 0 {
		return ""
	}
	return s.open[rand.IntN(len(s.open))]
}

func (s *shop) opened(order string) {
	s.mu.Lock()
	s.open = append(s.open, order)
	s.mu.Unlock()
}

func (s *shop) delivered(order string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, id := range s.open {
		if id == order {
			s.open[i] = s.open[len(s.open)-1]
			s.open = s.open[:len(s.open)-1]
			return
		}
	}
}
