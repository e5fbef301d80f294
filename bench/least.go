package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/redis/go-redis/v9"
)

// least is the least code that works: it receives, parses, appends each row with
// an XADD of its own, and confirms. It keeps no checkpoint, so that what it had
// appended and not yet confirmed comes twice when it ends. It runs until it fails.
func least(ctx context.Context, postgres, slot, publication, redisURL, stream string) error {
	options, err := redis.ParseURL(redisURL)
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close()
	config, err := pgconn.ParseConfig(postgres)
	if err != nil {
		return err
	}
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	err = pglogrepl.StartReplication(ctx, conn, slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", fmt.Sprintf("publication_names '%s'", publication)},
	})
	if err != nil {
		return err
	}

	const every = 10 * time.Second
	relations := map[uint32]*pglogrepl.RelationMessage{}
	var confirmed pglogrepl.LSN
	next := time.Now().Add(every)
	for {
		if time.Now().After(next) {
			if err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: confirmed}); err != nil {
				return err
			}
			next = time.Now().Add(every)
		}
		receive, cancel := context.WithDeadline(ctx, next)
		raw, err := conn.ReceiveMessage(receive)
		cancel()
		if pgconn.Timeout(err) {
			continue
		}
		if err != nil {
			return err
		}
		message, ok := raw.(*pgproto3.CopyData)
		if !ok {
			return fmt.Errorf("the stream holds %T", raw)
		}
		switch message.Data[0] {
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(message.Data[1:])
			if err != nil {
				return err
			}
			if keepalive.ReplyRequested {
				next = time.Time{}
			}
		case pglogrepl.XLogDataByteID:
			data, err := pglogrepl.ParseXLogData(message.Data[1:])
			if err != nil {
				return err
			}
			change, err := pglogrepl.Parse(data.WALData)
			if err != nil {
				return err
			}
			switch change := change.(type) {
			case *pglogrepl.RelationMessage:
				relations[change.RelationID] = change
			case *pglogrepl.InsertMessage:
				relation := relations[change.RelationID]
				if relation == nil {
					return errors.New("a row of a table that was not described")
				}
				values := map[string]string{}
				for i, column := range change.Tuple.Columns {
					values[relation.Columns[i].Name] = string(column.Data)
				}
				err := client.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []string{
					"kind", values["kind"], "outbox_id", values["id"], "payload", values["payload"],
				}}).Err()
				if err != nil {
					return err
				}
			case *pglogrepl.CommitMessage:
				confirmed = change.TransactionEndLSN
			}
		}
	}
}
