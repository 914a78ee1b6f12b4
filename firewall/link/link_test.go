package link

import "testing"

func TestHardwareAddressIsLocalUnicast(t *testing.T) {
	if mac := linkMAC("a", "box"); mac[0]&3 != 2 {
		t.Errorf("%v is not a local unicast address", mac)
	}
}
