package health

// keep is the part of a limit above which a level that was reached is kept, so
// that a value that swings around the limit does not change the level each time.
const keep = 0.8

// latch is the level of one value. It rises the moment that the value reaches a
// limit, and is left when the value is clearly below.
type latch struct{ at Status }

// step takes the value as it is now. A limit of zero is none.
func (l *latch) step(value, warn, critical float64) Status {
	before := l.at
	reached := func(limit float64, kept bool) bool {
		return limit > 0 && (value >= limit || kept && value >= keep*limit)
	}
	switch {
	case reached(critical, before == StatusCritical):
		l.at = StatusCritical
	case reached(warn, before.severity() > 0):
		l.at = StatusWarn
	default:
		l.at = StatusOK
	}
	return l.at
}

// reset is for a value that is not known.
func (l *latch) reset() { l.at = StatusOK }

// level is what the latch says, also before its first step.
func (l *latch) level() Status {
	if l.at == "" {
		return StatusOK
	}
	return l.at
}
