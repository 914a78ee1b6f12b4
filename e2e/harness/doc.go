// Package harness is what the end-to-end tests share: a [World], which is a lab with a gateway of the test binary itself,
// programs in its boxes ([Intruder], [Raider]) that send what no library would, and waiting for what must happen.
package harness
