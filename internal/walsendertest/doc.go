// Package walsendertest is a scripted walsender at the wire: it lets tests send
// a replication client what a real PostgreSQL sends seldom, late or only in
// other versions, and shows them byte for byte what the client answers.
//
//	srv := walsendertest.Start(t, walsendertest.Options{Script: func(c *walsendertest.Conn) {
//		c.XLogData(0x100, walsendertest.Begin(0x100, 7))
//		…
//		<-c.Gone()
//	}})
//	replication.Connect(ctx, replication.Config{ConnString: srv.ConnString(), …})
package walsendertest
