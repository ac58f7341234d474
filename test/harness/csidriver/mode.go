package csidriver

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
)

// Mode is how the driver behaves. It reads it anew for each connection and each call.
type Mode struct {
	// Name is what it calls itself; empty: its name.
	Name string `json:"name,omitempty"`
	// Connection is what it does with a connection instead of serving it.
	Connection Connection `json:"connection,omitempty"`
	// Answers are its answers to methods (GetPluginInfo, NodeStageVolume, ...), instead
	// of what they do.
	Answers map[string]Answer `json:"answers,omitempty"`
	// Stage is what NodeStageVolume does.
	Stage Stage `json:"stage,omitempty"`
	// Health has it report a volume as degraded: the reason, and the message.
	Health []string `json:"health,omitempty"`
	// Healer has the healer that is built into it answer for the health of volumes.
	Healer bool `json:"healer,omitempty"`
	// Heal is what NodeHealer does.
	Heal Heal `json:"heal,omitempty"`
	// UserKey is the secret without which it stages and heals nothing.
	UserKey string `json:"userKey,omitempty"`
	// Daemon is the command line of its daemons, which stay in the foreground; empty:
	// this program. $ID, $DATA and $AT are the volume's.
	Daemon []string `json:"daemon,omitempty"`
	// Source is the source of its mounts; empty: the volume's ID.
	Source string `json:"source,omitempty"`
	// PublishOnly has it stage nothing, and mount at the target itself what NodeStageVolume
	// mounts else, also when it is called once more (requiresRepublish).
	PublishOnly bool `json:"publishOnly,omitempty"`
	// Formats has it make a filesystem on a disk that has none, as the library does that most
	// drivers use (FormatAndMount of k8s.io/mount-utils).
	Formats bool `json:"formats,omitempty"`
	// NoAddons has it serve no CSI-Addons socket, as most drivers. It counts when the
	// plugin starts.
	NoAddons bool `json:"noAddons,omitempty"`
	// Takes is how long it takes to stage a volume.
	Takes time.Duration `json:"takes,omitempty"`
	// Waits has it stage no volume as long as the mode says so.
	Waits bool `json:"waits,omitempty"`
	// MountsAfter is how long a daemon waits for its storage before it looks at the staging
	// path and mounts there, whoever waits for that (geesefs v0.43). The driver then keeps no
	// second call from starting a second one.
	MountsAfter time.Duration `json:"mountsAfter,omitempty"`
	// GivesUp has a daemon mount, answer nothing, and take its mount off at SIGTERM (s3fs v1.90,
	// whose server is away, does so after a time).
	GivesUp bool `json:"givesUp,omitempty"`
}

// Connection is what the driver does with a connection.
type Connection string

// What drivers do with connections that do not serve them.
const (
	Silent     Connection = "silent"
	Garbage    Connection = "garbage"
	Closes     Connection = "closes"
	HalfCloses Connection = "half-closes"
	HalfFrame  Connection = "half a frame"
)

// Answer is an answer that has nothing to do with the question.
type Answer struct {
	// Hangs is true for none, until the caller has left.
	Hangs bool `json:"hangs,omitempty"`
	// Late has the method do what it does, and then hang.
	Late bool `json:"late,omitempty"`
	// Huge is how many bytes of text the answer has.
	Huge int        `json:"huge,omitempty"`
	Code codes.Code `json:"code,omitempty"`
	Text string     `json:"text,omitempty"`
}

// Stage is what NodeStageVolume does where its own mount is already, dead or alive.
type Stage string

const (
	// Heals replaces a dead mount.
	Heals Stage = ""
	// RefusesDead answers INTERNAL over a dead mount.
	RefusesDead Stage = "refuses what is dead"
	// DoesNothing answers OK wherever something is mounted (ru.yandex.s3.csi v1.34).
	DoesNothing Stage = "does nothing over a mount"
	// NeedsBare answers FAILED_PRECONDITION wherever something is mounted.
	NeedsBare Stage = "needs a bare directory"
	// NeverBare mounts nothing over a bare directory, and answers OK (CubeFS).
	NeverBare Stage = "mounts nothing over a bare directory"
	// Stacks mounts over whatever is there.
	Stacks Stage = "stacks"
	// Remembers answers OK, and does nothing, for what it staged in this process.
	Remembers Stage = "remembers"
	// Repairs replaces dead mounts by itself, and is then told to.
	Repairs Stage = "repairs itself"
)

// Heal is what NodeHealer does.
type Heal string

const (
	// HealsNot answers UNIMPLEMENTED.
	HealsNot Heal = ""
	// Publishes binds the staged volume at the volume's path.
	Publishes Heal = "publishes"
	// OnlySays answers that the volume is healthy, and does nothing.
	OnlySays Heal = "only says"
)

// Behave sets the driver's mode.
func (d Driver) Behave(m Mode) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.Volumes, 0o755); err != nil {
		return err
	}
	// In one step: the driver may read at any time.
	next := d.modeFile() + ".next"
	if err := os.WriteFile(next, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(next, d.modeFile())
}

func (d Driver) modeFile() string { return filepath.Join(d.Volumes, "mode.json") }

// mode is the driver's mode now.
func (d Driver) mode() (m Mode) {
	raw, err := os.ReadFile(d.modeFile())
	if errors.Is(err, fs.ErrNotExist) {
		return m
	}
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		panic(err) // it ends the process, which the test sees
	}
	return m
}
