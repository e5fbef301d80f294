package health

// CauseKind tells one cause from another, where a sentence is of no use.
type CauseKind string

// The kinds of causes.
const (
	CauseTransaction  CauseKind = "transaction"   // open or prepared
	CauseStopped      CauseKind = "stopped"       // until somebody acts
	CauseRedis        CauseKind = "redis"         // is unreachable
	CauseNoRelay      CauseKind = "no_relay"      // is connected to the slot
	CauseNotStreaming CauseKind = "not_streaming" // the relay that is
	CauseLockedRow    CauseKind = "locked_row"    // which cannot be marked
	CauseCreation     CauseKind = "slot_creation" // waits for a transaction
	CauseBackfill     CauseKind = "backfill"
	CauseSlow         CauseKind = "slow"        // slower than the writers
	CauseBehind       CauseKind = "behind"      // as fast as the writers
	CauseCatchingUp   CauseKind = "catching_up" // faster than the writers
	CauseOtherSlot    CauseKind = "other_slot"  // keeps more than ours
)

// CauseKinds returns every kind.
func CauseKinds() []CauseKind {
	return []CauseKind{
		CauseTransaction, CauseStopped, CauseRedis, CauseNoRelay, CauseNotStreaming, CauseLockedRow,
		CauseCreation, CauseBackfill, CauseSlow, CauseBehind, CauseCatchingUp, CauseOtherSlot,
	}
}
