//go:build !linux

package slot

import "net"

// lowWater is Linux' alone.
type lowWater struct{}

func newLowWater(net.Conn) *lowWater { return nil }

func (*lowWater) at(int) error { return nil }
