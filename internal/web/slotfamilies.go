package web

import (
	"github.com/stagedoor/walrelay/internal/health"
)

// slots say what PostgreSQL keeps, whoever reads it. A poller has no slot; what
// it shows is one that a relay left behind.
func slots() []family {
	slot := func(read func(*health.Slot, emit)) func(snapshot, emit) {
		return func(s snapshot, send emit) {
			if s.Slot == nil {
				s.Slot = s.Leftover
			}
			if s.Slot != nil {
				read(s.Slot, send)
			}
		}
	}
	spill := func(name, help string, read func(*health.Spill) int64) family {
		return counter("slot_spill"+name, help+" since its statistics were reset; absent before PostgreSQL 14.",
			slot(func(s *health.Slot, send emit) {
				if s.Spill != nil {
					send(float64(read(s.Spill)))
				}
			}))
	}
	other := func(read func(*health.Other) float64) func(snapshot, emit) {
		return func(s snapshot, send emit) {
			if s.Other != nil {
				send(read(s.Other), label(s.Other.Name))
			}
		}
	}
	return []family{
		gauge("slot_present", "1 while the slot is there, 0 while it is not; absent before PostgreSQL was asked.",
			func(s snapshot, send emit) {
				if s.Database.SeenAt != nil {
					send(oneIf(s.Slot != nil || s.Leftover != nil))
				}
			}),
		gauge("slot_active", "1 while a relay is connected to the slot.",
			slot(func(s *health.Slot, send emit) { send(oneIf(s.Active)) })),
		gauge("slot_inactive_since_timestamp_seconds", "When the slot was last left, since 1970; absent while it is active, and before PostgreSQL 17.",
			slot(func(s *health.Slot, send emit) { moment(send, &s.InactiveSince) })),
		gauge("slot_wal_status", "1 for the slot's wal_status, 0 for the others.",
			slot(func(s *health.Slot, send emit) {
				if s.WALStatus != "" {
					one(send, health.WALStatuses(), s.WALStatus)
				}
			}), "status"),
		gauge("slot_unconfirmed_bytes", "WAL behind the slot's confirmed_flush_lsn: what is not delivered.",
			slot(func(s *health.Slot, send emit) { known(send, s.UnconfirmedBytes) })),
		gauge("slot_retained_bytes", "WAL behind the slot's restart_lsn: what the slot keeps on disk; absent when it is lost.",
			slot(func(s *health.Slot, send emit) { known(send, s.RetainedBytes) })),
		gauge("slot_safe_wal_bytes", "WAL that can be written before the slot loses some; absent without max_slot_wal_keep_size.",
			slot(func(s *health.Slot, send emit) { known(send, s.SafeWALSize) })),
		spill("_transactions_total", "Transactions that did not fit into logical_decoding_work_mem and were put on disk for the slot", func(s *health.Spill) int64 { return s.Transactions }),
		spill("s_total", "Times that a transaction was put on disk for the slot", func(s *health.Spill) int64 { return s.Times }),
		spill("_bytes_total", "Bytes of transactions that were put on disk for the slot", func(s *health.Spill) int64 { return s.Bytes }),
		gauge("other_slot_retained_bytes", "WAL behind the restart_lsn of the slot, of all others, that keeps the most; absent where there is no other.",
			other(func(o *health.Other) float64 { return float64(o.RetainedBytes) }), "slot"),
		gauge("other_slot_active", "1 while somebody is connected to that slot.",
			other(func(o *health.Other) float64 { return oneIf(o.Active) }), "slot"),
		total("wal_written_bytes_total", "WAL that the server wrote while the monitor looked, for whatever table.", func(s Stats) uint64 { return s.WALWritten }),
		total("wal_confirmed_bytes_total", "WAL that was confirmed on the slot while the monitor looked.", func(s Stats) uint64 { return s.WALConfirmed }),
	}
}

// streams say how far the consumers are.
func streams() []family {
	group := func(read func(health.Group, func(*int64))) func(snapshot, emit) {
		return func(s snapshot, send emit) {
			if s.Stream == nil {
				return
			}
			seen := map[string]bool{} // a label cannot hold every name that Redis can
			for _, g := range s.Stream.Groups {
				name := label(g.Name)
				if !seen[name] {
					seen[name] = true
					read(g, func(v *int64) { known(send, v, label(s.Stream.Name), name) })
				}
			}
		}
	}
	return []family{
		gauge("stream_entries", "Entries that the stream holds, as Redis last told; absent while it has not.",
			func(s snapshot, send emit) {
				if s.Stream != nil {
					send(float64(s.Stream.Length), label(s.Stream.Name))
				}
			}, "stream"),
		gauge("stream_groups", "Consumer groups of the stream; absent while they are not known. Of more than 100, those that are furthest behind have metrics.",
			func(s snapshot, send emit) {
				if s.Stream != nil && s.Stream.GroupCount != nil {
					send(float64(*s.Stream.GroupCount), label(s.Stream.Name))
				}
			}, "stream"),
		gauge("group_lag_entries", "Entries that were not delivered to the group yet; absent where Redis does not know.",
			group(func(g health.Group, send func(*int64)) { send(g.Lag) }), "stream", "group"),
		gauge("group_pending_entries", "Entries that were delivered to the group and not acknowledged.",
			group(func(g health.Group, send func(*int64)) { send(&g.Pending) }), "stream", "group"),
		gauge("group_consumers", "Consumers that the group knows.",
			group(func(g health.Group, send func(*int64)) { send(&g.Consumers) }), "stream", "group"),
	}
}
