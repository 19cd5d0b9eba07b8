package conformance

// Shared lets several runs share the room for so many workers.
func Shared(cfg Config, room, starts chan struct{}) Config {
	cfg.room, cfg.starts = room, starts
	return cfg
}
