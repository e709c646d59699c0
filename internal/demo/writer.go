package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// writer is one of the shop's sessions.
type writer struct {
	shop *shop
	conn *pgx.Conn
}

// work commits and rolls back until working ends; ctx is for the statements.
func (w *writer) work(working, ctx context.Context) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-working.Done():
			return nil
		case <-tick.C:
		}
		if err := w.transact(ctx); err != nil {
			return shopError(err)
		}
	}
}

// transact is one transaction of the shop: a change and its events together, or
// neither.
func (w *writer) transact(ctx context.Context) error {
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return err
	}
	b := &business{shop: w.shop, tx: tx}
	if err := b.some(ctx); err != nil {
		return err
	}
	w.forget(b.undone)
	if rand.Float64() < rollbackShare {
		if err := tx.Rollback(ctx); err != nil {
			return err
		}
		w.shop.tally.rolledBack(len(b.written), len(b.undone))
		w.forget(b.written)
		return nil
	}
	at := time.Now() // before the commit: an event may arrive before its answer does
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	w.shop.tally.committed(b.written, len(b.undone), at)
	for _, then := range b.afterwards {
		then()
	}
	return nil
}

func (w *writer) forget(ids []string) {
	for _, id := range ids {
		w.shop.rolledBack(id)
	}
}

// business is one transaction while it is open.
type business struct {
	shop *shop
	tx   pgx.Tx
	// written are the events that go with the transaction, undone those that a
	// savepoint has taken back.
	written, undone []string
	// afterwards is for when it is committed.
	afterwards []func()
}

// some picks what happens.
func (b *business) some(ctx context.Context) error {
	order := b.shop.someOrder()
	switch p := rand.Float64(); {
	case order == "" || p < placeShare:
		return b.place(ctx)
	case p < placeShare+couponShare:
		return b.coupon(ctx, order)
	default:
		return b.advance(ctx, order)
	}
}

// place is one transaction with events of two aggregates, for two topics.
func (b *business) place(ctx context.Context) error {
	order, customer := b.shop.nextOrder(), fmt.Sprintf("customer-%d", 1+rand.IntN(customers))
	var name string
	var version int64
	// The row lock keeps versions in commit order: that is what order per key means.
	err := b.tx.QueryRow(ctx, `UPDATE shop.customers SET orders = orders + 1, version = version + 1 WHERE id = $1
		RETURNING name, version`, customer).Scan(&name, &version)
	if err != nil {
		return err
	}
	total := fmt.Sprintf("%d.%02d", 5+rand.IntN(200), rand.IntN(100))
	_, err = b.tx.Exec(ctx, `INSERT INTO shop.orders (id, customer, total, state) VALUES ($1, $2, $3::text::numeric, 'OrderPlaced')`,
		order, customer, total)
	if err != nil {
		return err
	}
	b.afterwards = append(b.afterwards, func() { b.shop.opened(order) })
	placed := fact{"order": order, "customer": name, "total": json.Number(total)}
	if err := b.event(ctx, typeOrder, order, 1, "OrderPlaced", placed); err != nil {
		return err
	}
	return b.event(ctx, typeCustomer, customer, version, "CustomerOrdered", fact{"customer": name, "order": order})
}

// states of an order by its version.
var states = []string{2: "OrderPaid", 3: "OrderPacked", 4: "OrderShipped", 5: "OrderDelivered"}

// advance takes an order to its next state.
func (b *business) advance(ctx context.Context, order string) error {
	version, err := b.touch(ctx, order)
	if err != nil {
		return err
	}
	state := states[min(int(version), len(states)-1)]
	if _, err := b.tx.Exec(ctx, `UPDATE shop.orders SET state = $2 WHERE id = $1`, order, state); err != nil {
		return err
	}
	if int(version) >= len(states)-1 {
		b.afterwards = append(b.afterwards, func() { b.shop.delivered(order) })
	}
	return b.event(ctx, typeOrder, order, version, state, fact{"order": order, "state": state})
}

// coupon tries something inside a savepoint and takes it back: its event must
// not be seen, the one after it must.
func (b *business) coupon(ctx context.Context, order string) error {
	version, err := b.touch(ctx, order)
	if err != nil {
		return err
	}
	kept := len(b.written)
	savepoint, err := b.tx.Begin(ctx)
	if err != nil {
		return err
	}
	outer := b.tx
	b.tx = savepoint
	err = b.event(ctx, typeOrder, order, version, "OrderDiscounted", fact{"order": order, "percent": 90})
	b.tx = outer
	if err != nil {
		return err
	}
	if err := savepoint.Rollback(ctx); err != nil {
		return err
	}
	b.written, b.undone = b.written[:kept], append(b.undone, b.written[kept:]...)
	return b.event(ctx, typeOrder, order, version, "CouponRefused", fact{"order": order, "reason": "it has expired"})
}

// touch locks the order and gives its next version.
func (b *business) touch(ctx context.Context, order string) (version int64, err error) {
	err = b.tx.QueryRow(ctx, `UPDATE shop.orders SET version = version + 1 WHERE id = $1 RETURNING version`, order).Scan(&version)
	return version, err
}

// fact is an event's content.
type fact map[string]any

func (b *business) event(ctx context.Context, aggregate, id string, version int64, kind string, what fact) error {
	payload, err := json.Marshal(what)
	if err != nil {
		return err
	}
	var eventID string
	err = b.tx.QueryRow(ctx, `INSERT INTO `+outboxTable+` (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
		VALUES (gen_random_uuid(), $1, $2, $3, $4, $5) RETURNING event_id::text`, aggregate, id, version, kind, payload).Scan(&eventID)
	b.written = append(b.written, eventID)
	return err
}
