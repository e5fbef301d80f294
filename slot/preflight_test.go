package slot

import (
	"testing"
	"time"
)

// A server that decodes a large transaction is silent for half of its
// wal_sender_timeout. That must not be long, whatever the server's setting.
func TestSenderTimeoutIsBounded(t *testing.T) {
	w := onCommon(t)
	for setting, want := range map[string]time.Duration{
		"0": senderPatience, "1h": senderPatience, "20001": senderPatience, "20s": 20 * time.Second, "3s": 3 * time.Second,
	} {
		w.cfg.Conn = w.parse(w.as("", "options", "--wal_sender_timeout="+setting))
		s := w.open()
		row, err := s.command(w.ctx(), `SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'`)
		if err != nil {
			t.Fatal(err)
		}
		inForce, err := milliseconds(row[0])
		if err != nil || inForce != want || s.SenderTimeout() != want {
			t.Errorf("with %s the connection has %s and says %s, want %s (%v)", setting, inForce, s.SenderTimeout(), want, err)
		}
	}
}
