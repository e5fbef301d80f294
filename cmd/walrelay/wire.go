package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/match"
	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/relay"
	"github.com/stagedoor/walrelay/slot"
)

// source plugs package slot into the relay.
type source struct {
	*slot.Source
	newest *pg.Newest
	table  *outbox.Table
}

// Prefer implements relay.Source.
func (s source) Prefer(timeline uint32) (news bool) { return s.newest.Know(timeline) }

// Open implements relay.Source.
func (s source) Open(ctx context.Context) (relay.Session, error) {
	opened, err := s.Source.Open(ctx)
	if err != nil {
		return nil, err
	}
	s.table.Follow(opened.Conn())
	return session{opened}, nil
}

type session struct{ *slot.Session }

// Start implements relay.Session.
func (s session) Start(ctx context.Context) (relay.Stream, error) {
	started, err := s.Session.Start(ctx)
	if err != nil {
		return nil, lost(standby(err))
	}
	return stream{started}, nil
}

// FirstCommit implements relay.Session.
func (s session) FirstCommit(ctx context.Context) (time.Time, bool, error) {
	at, ok, err := s.Session.FirstCommit(ctx)
	if errors.Is(err, slot.ErrSlotLost) || errors.Is(err, slot.ErrPublication) {
		err = fmt.Errorf("%w: %w", relay.ErrNotDelivered, err)
	}
	return at, ok, standby(err)
}

type stream struct{ *slot.Stream }

// Receive implements relay.Stream.
func (s stream) Receive(deadline time.Time) (cdc.Frame, bool, error) {
	frame, ok, err := s.Stream.Receive(deadline)
	if err != nil {
		err = lost(err)
	}
	return frame, ok, err
}

// Gather implements relay.Stream.
func (s stream) Gather(bytes int, deadline time.Time) (int, error) {
	n, err := s.Stream.Gather(bytes, deadline)
	if err != nil {
		err = lost(err)
	}
	return n, err
}

// lost says of what kind of gap an error is that ends a stream.
func lost(err error) error {
	switch {
	case errors.Is(err, slot.ErrSlotLost):
		return &relay.GapError{Kind: cdc.SlotLost, Err: err}
	case errors.Is(err, slot.ErrSlotMissing):
		return &relay.GapError{Kind: cdc.NoSlot, Err: err}
	case errors.Is(err, slot.ErrPublication):
		return &relay.GapError{Kind: cdc.NoPublication, Err: err}
	}
	return err
}

// Drop implements relay.SlotMaker.
func (s session) Drop(ctx context.Context) error { return standby(s.Session.Drop(ctx)) }

// Keep implements relay.SlotMaker.
func (s session) Keep(ctx context.Context, snapshot cdc.Snapshot) error {
	err := s.Session.Keep(ctx, snapshot)
	if errors.Is(err, slot.ErrSlotLost) {
		return fmt.Errorf("%w: %w", relay.ErrOutlived, err)
	}
	return standby(err)
}

// standby translates the one error of package slot that the relay decides by.
func standby(err error) error {
	if errors.Is(err, slot.ErrSlotInUse) {
		return fmt.Errorf("%w: %w", relay.ErrSlotInUse, err)
	}
	return err
}

// table plugs package outbox into the relay.
type table struct {
	*outbox.Table
	id         string // the id column
	healMargin time.Duration
}

// Check implements relay.Table.
func (t table) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return t.Table.Check(ctx, nil)
}

// Marks implements relay.Table.
func (t table) Marks() bool { return t.Table.Marks() != outbox.MarkNone }

// Fields implements relay.Table.
func (t table) Fields() match.Fields {
	var fields match.Fields
	json := t.JSONFields()
	for _, f := range t.Table.Fields() {
		fields = append(fields, match.Field{Name: f.Name, ID: f.Column == t.id, JSON: json[f.Name]})
	}
	return fields
}

// Candidates implements relay.Table.
func (t table) Candidates(ctx context.Context, s cdc.Snapshot, since cdc.Since) (relay.Candidates, error) {
	opened, err := t.Table.Candidates(ctx, s.Name, since, t.healMargin)
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// Mark implements relay.Table.
func (t table) Mark(ctx context.Context, rows []cdc.Mark) ([]cdc.MarkState, error) {
	states, err := t.Table.Mark(ctx, rows)
	if errors.Is(err, outbox.ErrMarkRefused) {
		err = fmt.Errorf("%w: %w", relay.ErrMarkRefused, err)
	}
	return states, err
}

// Locker implements relay.Table.
func (t table) Locker(ctx context.Context, id string) (string, error) {
	text, _, err := t.Table.Locker(ctx, id)
	return text, err
}
