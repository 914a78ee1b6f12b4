// Package harness is shared by the end-to-end tests: a [World], which is a lab whose gateway is the test binary itself,
// programs in its boxes ([Intruder], [Raider]) that send what no library would, and helpers that wait for conditions.
package harness
