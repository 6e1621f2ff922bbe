//! Manual clock, simulated link and scripted provider for tests.
