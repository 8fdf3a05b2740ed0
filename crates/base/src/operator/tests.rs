//! Each operator against itself: a list of operands has one effect, however it is combined.

use super::*;

const NAMES: [&str; 7] = [
    "add-i64",
    "saturating-add-i64",
    "checked-add-i64",
    "max",
    "min",
    "append",
    "bit-or",
];

/// A generator of xorshift type.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number that is often near a limit.
    fn number(&mut self) -> i64 {
        let small = (self.next() % 7) as i64 - 3;
        match self.next() % 5 {
            0 => i64::MAX - small.abs(),
            1 => i64::MIN + small.abs(),
            2 => i64::MAX / 2 + small,
            3 => self.next() as i64,
            _ => small,
        }
    }

    fn operand(&mut self, name: &str) -> Vec<u8> {
        match name.ends_with("i64") {
            true => self.number().to_le_bytes().to_vec(),
            false => (0..self.next() % 6)
                .map(|_| self.next() as u8 & 3)
                .collect(),
        }
    }
}

type Value = std::result::Result<Option<Vec<u8>>, ()>;

fn apply(operator: &dyn MergeOperator, value: Option<Vec<u8>>, operand: &[u8]) -> Value {
    let mut out = Vec::new();
    match operator.apply(b"key", value.as_deref(), operand, &mut out) {
        Ok(Outcome::Value) => Ok(Some(out)),
        Ok(Outcome::Nothing) => Ok(None),
        Err(_) => Err(()),
    }
}

/// Combines neighbours at random places until few operands are left.
fn combined(
    operator: &dyn MergeOperator,
    mut operands: Vec<Vec<u8>>,
    random: &mut Random,
) -> Vec<Vec<u8>> {
    let left = 1 + random.next() as usize % operands.len();
    while operands.len() > left {
        let at = random.next() as usize % (operands.len() - 1);
        let newer = operands.remove(at + 1);
        let mut out = Vec::new();
        assert!(
            operator
                .combine(b"key", &operands[at], &newer, &mut out)
                .unwrap()
        );
        operands[at] = out;
    }
    operands
}

#[test]
fn operands_have_one_effect_however_they_are_combined() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut failed, mut held) = (0, 0);
    for name in NAMES {
        let operator = built_in_operator(name).unwrap();
        for _ in 0..20_000 {
            let count = 1 + random.next() as usize % 6;
            let operands: Vec<_> = (0..count).map(|_| random.operand(name)).collect();
            assert!(
                operands
                    .iter()
                    .all(|operand| operator.check(b"key", operand).is_ok())
            );
            let first = (!random.next().is_multiple_of(3)).then(|| random.operand(name));
            let one_by_one = operands.iter().try_fold(first.clone(), |value, operand| {
                apply(operator, value, operand)
            });
            let fewer = combined(operator, operands, &mut random);
            let together = fewer
                .iter()
                .try_fold(first, |value, operand| apply(operator, value, operand));
            assert_eq!(one_by_one, together, "{name}");
            failed += u32::from(together.is_err());
            held += u32::from(together == Ok(Some(i64::MAX.to_le_bytes().to_vec())));
        }
    }
    // The limits were met, and the checked addition failed at them.
    assert!(failed > 1_000 && held > 1_000, "{failed} {held}");
}

#[test]
fn saturating_additions_in_three_orders() {
    let add = |value: i64, operand: i64| value.saturating_add(operand);
    let orders = [[i64::MAX, 1, -1], [1, i64::MAX, -1], [-1, 1, i64::MAX]];
    for order in orders {
        let expected = order.into_iter().fold(0, add);
        for split in [1, 2] {
            let bytes = order.map(i64::to_le_bytes);
            let mut out = Vec::new();
            let operator = SaturatingAddI64;
            operator
                .combine(b"", &bytes[split - 1], &bytes[split], &mut out)
                .unwrap();
            let operands: [&[u8]; 2] = match split {
                1 => [&out, &bytes[2]],
                _ => [&bytes[0], &out],
            };
            let value = operands
                .iter()
                .try_fold(None, |value, operand| apply(&operator, value, operand));
            assert_eq!(value, Ok(Some(expected.to_le_bytes().to_vec())));
        }
    }
}

#[test]
fn counters_refuse_what_is_no_number() {
    for name in &NAMES[..3] {
        let operator = built_in_operator(name).unwrap();
        let one = 1i64.to_le_bytes();
        for wrong in [&b""[..], b"1234567", b"123456789", &[0x80; 32], &[0x80; 48]] {
            let mut out = Vec::new();
            let both = operator.combine(b"", wrong, &one, &mut out);
            assert!(operator.check(b"", wrong).is_err(), "{name}");
            assert!(
                operator.apply(b"", Some(wrong), &one, &mut out).is_err(),
                "{name}"
            );
            // The lengths of combined operands are those of other bytes, too.
            let plain = !matches!(wrong.len(), 32 | 48);
            assert!(both.is_err() || !plain, "{name}");
        }
    }
    let mut backwards = 0i128.to_le_bytes().to_vec();
    backwards.extend_from_slice(&1i64.to_le_bytes());
    backwards.extend_from_slice(&0i64.to_le_bytes());
    assert!(
        SaturatingAddI64
            .apply(b"", None, &backwards, &mut Vec::new())
            .is_err()
    );
    let mut backwards = Vec::new();
    for part in [5i128, 6, 7] {
        backwards.extend_from_slice(&part.to_le_bytes());
    }
    assert!(
        CheckedAddI64
            .apply(b"", None, &backwards, &mut Vec::new())
            .is_err()
    );
}
