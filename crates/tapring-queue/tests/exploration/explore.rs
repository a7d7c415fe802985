//! Breadth-first search over the states of a world.
//!
//! A state is known by a hash of all that decides what may come next, and the first run found to it
//! is one of the shortest. The run that ends badly is played once more, to tell it.

use std::collections::{HashSet, VecDeque};
use std::fmt;

use crate::case::Case;
use crate::choice::Script;
use crate::mix::BuildMix;
use crate::quiet::quietly;
use crate::world::{Stage, World};

/// What was found out about a case.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) states: usize,
    /// Steps tried: each is a run to a state and one step more.
    pub(crate) interleavings: usize,
    /// Steps of the longest run needed to reach any state.
    pub(crate) depth: usize,
    /// What went wrong first, and how it came about.
    pub(crate) broken: Option<Broken>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            states,
            interleavings,
            depth,
            ..
        } = self;
        write!(
            f,
            "{states} states, {interleavings} interleavings, {depth} steps deep"
        )
    }
}

#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) what: String,
    pub(crate) steps: Vec<String>,
}

/// How a state was reached: from which, and by what.
struct Node {
    from: usize,
    script: Script,
    depth: usize,
}

pub(crate) struct Explorer<'s> {
    case: &'s Case,
    stage: &'s Stage,
    nodes: Vec<Node>,
    seen: HashSet<u64, BuildMix>,
    /// States whose steps were not tried yet.
    ahead: VecDeque<(usize, World<'s>)>,
    found: Found,
}

const ROOT: usize = 0;

impl<'s> Explorer<'s> {
    pub(crate) fn new(case: &'s Case, stage: &'s Stage) -> Self {
        let root = Node {
            from: ROOT,
            script: Script::default(),
            depth: 0,
        };
        let world = World::new(case, stage);
        Self {
            case,
            stage,
            nodes: vec![root],
            seen: HashSet::from_iter([world.fingerprint()]),
            ahead: VecDeque::from([(ROOT, world)]),
            found: Found::default(),
        }
    }

    /// Looks at every state there is, or up to the first thing that is wrong.
    pub(crate) fn explore(mut self) -> Found {
        while let Some((at, world)) = self.ahead.pop_front()
            && self.found.broken.is_none()
        {
            self.expand(at, &world);
        }
        self.found.states = self.nodes.len();
        self.found
    }

    /// Tries every step from a state.
    fn expand(&mut self, at: usize, world: &World<'s>) {
        let mut scripts = vec![Script::default()];
        while let Some(script) = scripts.pop() {
            let mut next = world.clone();
            let step = quietly(|| next.step(script));
            let Ok(moved) = step else {
                self.found.broken = Some(self.tell(at, script));
                return;
            };
            scripts.extend(next.choices().siblings());
            if moved {
                self.arrive(at, script, next);
            }
        }
    }

    fn arrive(&mut self, from: usize, script: Script, world: World<'s>) {
        self.found.interleavings += 1;
        if self.seen.insert(world.fingerprint()) {
            let depth = self.nodes[from].depth + 1;
            self.found.depth = self.found.depth.max(depth);
            self.nodes.push(Node {
                from,
                script,
                depth,
            });
            self.ahead.push_back((self.nodes.len() - 1, world));
        }
    }

    fn run_to(&self, mut at: usize) -> Vec<Script> {
        let mut run = Vec::new();
        while at != ROOT {
            run.push(self.nodes[at].script);
            at = self.nodes[at].from;
        }
        run.reverse();
        run
    }

    /// Plays a run that ends badly once more, taking notes.
    fn tell(&self, at: usize, last: Script) -> Broken {
        let run = self.run_to(at);
        let mut world = World::new(self.case, self.stage);
        world.take_notes();
        let end = quietly(|| {
            for script in run {
                world.step(script);
            }
            world.step(last);
        });
        Broken {
            what: end.expect_err("the same run ends the same way"),
            steps: world.notes(),
        }
    }
}
