package demo

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"go.uber.org/fx"
)

// A claiming is sent before each claim of the inbox, which waits for the answer. It
// stands for the time that a statement is on its way, and comes behind every look at a
// lease that anybody could take. It goes to the parent's server, at claimingPath.
type claiming struct {
	From string   `json:"from"`
	IDs  []string `json:"ids"`
}

const claimingPath = "/claiming"

// claimOf names the claim of an event, for [payments.shut].
func claimOf(id string) string { return "claim of " + id }

// watchClaims replaces the pool of an instance by one that asks the parent before it
// sends a claim.
func (r *reporter) watchClaims(lc fx.Lifecycle, db *sqlx.DB) (*sqlx.DB, error) {
	connector, err := pq.NewConnector(r.cfg.Service.Postgres)
	if err != nil {
		return nil, err
	}
	watched := sqlx.NewDb(sql.OpenDB(watchedConnector{connector, r.claiming}), db.DriverName())
	watched.SetMaxOpenConns(db.Stats().MaxOpenConnections)
	watched.SetMaxIdleConns(db.Stats().MaxOpenConnections)
	lc.Append(fx.StopHook(watched.Close))
	return watched, nil
}

type watchedConnector struct {
	driver.Connector
	claiming func(ids []string) error
}

func (c watchedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	whole, ok := conn.(pqConn)
	if !ok {
		_ = conn.Close() // not used
		return nil, fmt.Errorf("connection of the driver is a %T, which lacks methods", conn)
	}
	return watchedConn{whole, c.claiming}, nil
}

// pqConn is what database/sql uses of a connection of lib/pq.
type pqConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type watchedConn struct {
	pqConn
	claiming func(ids []string) error
}

var eventID = regexp.MustCompile(`\b(?:timeout|remind):\d+:\d+\b`)

// QueryContext asks before a claim: no other statement has the IDs of events in it.
func (c watchedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	var ids []string
	for _, a := range args {
		if text, ok := a.Value.(string); ok {
			ids = append(ids, eventID.FindAllString(text, -1)...)
		}
	}
	if len(ids) > 0 {
		if err := c.claiming(ids); err != nil {
			return nil, err
		}
	}
	return c.pqConn.QueryContext(ctx, query, args)
}

// claiming waits for the parent, whatever has become of leases: what is on its way cannot
// be called back.
func (r *reporter) claiming(ids []string) error {
	return r.ask(context.Background(), claimingPath, claiming{From: r.cfg.Service.Name, IDs: ids})
}

// ask asks the parent and waits for the answer, until ctx ends or the parent does.
func (r *reporter) ask(ctx context.Context, path string, question any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.cfg.Service.Payments+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the demo answered %s", resp.Status)
	}
	return nil
}
