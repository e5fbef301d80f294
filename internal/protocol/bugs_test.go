package protocol

// bug is a planted one. Each is a line that somebody could write, or leave out,
// in package relay, slot or cdc.
type bug string

const (
	bugCheckpointFirst      bug = "the checkpoint is read before the slot"
	bugSlotOnce             bug = "a slot that is not there, or is older than the checkpoint, is not looked at again"
	bugStaleSlot            bug = "the slot is not looked at again when it is ours"
	bugIgnoreFork           bug = "a failover's fork is ignored"
	bugVersionAgain         bug = "a version is used again after Redis went back"
	bugOwnIsSuccess         bug = "any version of our own counts as our success"
	bugStampWithoutCompare  bug = "a stamp does not compare the version"
	bugAppendWithoutCompare bug = "an append does not compare the version"
	bugAdoptDuringBackfill  bug = "a backfill goes on under another's checkpoint"
	bugAdoptWhileStreaming  bug = "a relay appends on under another's checkpoint"
	bugUnmet                bug = "the checkpoint's transaction need not be met"
	bugEndUnmet             bug = "positions count before it is met"
	bugNoResume             bug = "what the stream has is not skipped"
	bugNoDelay              bug = "a stamp is confirmed at once"
	bugProofByReply         bug = "a stamp proves what Redis has when its reply comes"
	bugCarryProgress        bug = "progress is carried over a reconnect"
	bugKeepalivePast        bug = "a keepalive goes past the queue"
	bugConfirmReceived      bug = "what is received is confirmed"
	bugConfirmPublished     bug = "what is published is confirmed without a stamp"
	bugConfirmUnmarked      bug = "confirming does not wait for marks"
	bugNoFloor              bug = "a position below the slot's counts"
	bugSinceNow             bug = "a heal goes by the time when it begins"
	bugSinceForgotten       bug = "what a backfill goes by is forgotten when Redis forgets it"
	bugOnlyUnmarked         bug = "a backfill looks only at unmarked rows"
	bugNoTail               bug = "a backfill does not look at the stream"
	bugMarkEarly            bug = "a backfill marks at once"
	bugKeepEarly            bug = "the slot is made permanent before the rows are marked"
	bugStreamGone           bug = "a backfill ends although the stream was deleted meanwhile"
	bugKeepPosition         bug = "the checkpoint keeps its position over a backfill"
	bugOlderSlot            bug = "a slot from before the last backfill is taken for the one that it made"
	bugNoWitness            bug = "nobody looks at unmarked rows"
	bugWitnessNoEnd         bug = "the witness does not wait for the end of the WAL"
)

// planted is each of them with a world in which it shows.
var planted = []settings{
	{bug: bugCheckpointFirst, relays: 2, ticks: 1, steady: true, rows: 1, faults: 2, kinds: []step{faultCut}, first: true},
	{bug: bugSlotOnce, relays: 2, delay: 1, ticks: 1, before: 1, faults: 1, kinds: []step{faultStop}},
	{bug: bugStaleSlot, relays: 2, ticks: 1, steady: true, rows: 1, faults: 2, kinds: []step{faultCut}, first: true},
	{bug: bugIgnoreFork, relays: 1, delay: 1, ticks: 1, steady: true, rows: 2, faults: 1, kinds: []step{faultFailover}, witness: true},
	{bug: bugVersionAgain, relays: 1, delay: 1, ticks: 1, steady: true, rows: 1, faults: 2, kinds: []step{faultAstray, faultGoBack}},
	{bug: bugOwnIsSuccess, relays: 1, delay: 1, ticks: 1, steady: true, rows: 2, faults: 1, kinds: []step{faultGoBack}},
	{bug: bugStampWithoutCompare, relays: 1, delay: 1, ticks: 2, steady: true, rows: 1, faults: 1, kinds: []step{faultGoBack}},
	{bug: bugAppendWithoutCompare, relays: 2, delay: 1, ticks: 1, steady: true, rows: 1, faults: 1, kinds: []step{faultCut}},
	{bug: bugAdoptDuringBackfill, relays: 2, delay: 1, ticks: 1, before: 1, faults: 1, kinds: []step{faultCut}},
	{bug: bugAdoptWhileStreaming, relays: 2, delay: 1, ticks: 1, steady: true, rows: 1, faults: 1, kinds: []step{faultCut}},
	{bug: bugUnmet, relays: 1, delay: 1, ticks: 1, steady: true, rows: 2, faults: 1, kinds: []step{faultRestore}},
	{bug: bugEndUnmet, relays: 1, ticks: 1, steady: true, rows: 3, faults: 1, kinds: []step{faultRestore}},
	{bug: bugNoResume, relays: 1, delay: 1, ticks: 1, steady: true, rows: 1, faults: 1, kinds: []step{faultCrash}},
	{bug: bugNoDelay, relays: 1, delay: 1, ticks: 1, steady: true, rows: 1, faults: 1, kinds: []step{faultGoBack}},
	{bug: bugProofByReply, relays: 1, delay: 2, ticks: 3, steady: true, rows: 1, faults: 1, kinds: []step{faultGoBack}},
	{bug: bugCarryProgress, relays: 1, ticks: 1, steady: true, rows: 2, faults: 1, kinds: []step{faultFailover}, witness: true},
	{bug: bugKeepalivePast, relays: 1, ticks: 1, steady: true, rows: 1, busy: 1},
	{bug: bugConfirmReceived, relays: 1, ticks: 1, steady: true, rows: 1},
	{bug: bugConfirmPublished, relays: 1, ticks: 1, steady: true, rows: 1},
	{bug: bugConfirmUnmarked, relays: 1, ticks: 1, steady: true, rows: 1},
	{bug: bugNoFloor, relays: 1, ticks: 2, before: 2, reread: true, faults: 1, kinds: []step{faultCut}},
	{bug: bugSinceNow, relays: 1, delay: 1, ticks: 2, steady: true, rows: 1, faults: 1, kinds: []step{faultGoBack}},
	{bug: bugSinceForgotten, relays: 1, delay: 1, ticks: 2, steady: true, rows: 1, faults: 2, kinds: []step{faultEmpty}},
	{bug: bugOnlyUnmarked, relays: 1, delay: 1, ticks: 2, steady: true, rows: 1, faults: 1, kinds: []step{faultGoBack}},
	{bug: bugNoTail, relays: 1, delay: 1, ticks: 1, before: 1, faults: 1, kinds: []step{faultCrash}},
	{bug: bugMarkEarly, relays: 1, delay: 2, ticks: 1, before: 1, faults: 2, kinds: []step{faultGoBack, faultCrash}},
	{bug: bugKeepEarly, relays: 1, delay: 1, ticks: 1, before: 1, witness: true},
	{bug: bugStreamGone, relays: 1, delay: 1, ticks: 1, before: 1, faults: 1, kinds: []step{faultDelete}},
	{bug: bugKeepPosition, relays: 1, delay: 1, ticks: 1, steady: true, rows: 3, faults: 1, kinds: []step{faultRestore}},
	{bug: bugOlderSlot, relays: 1, ticks: 1, steady: true, rows: 1, busy: 1, faults: 2, kinds: []step{faultRequest, faultRestore}},
	{bug: bugNoWitness, relays: 1, delay: 1, ticks: 1, steady: true, rows: 1, faults: 1, kinds: []step{faultHidden}, witness: true},
	{bug: bugWitnessNoEnd, relays: 1, delay: 1, ticks: 2, steady: true, rows: 1, witness: true},
}
