//! Numbers as text of digits and letters, of one length.

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Writes a number, the most significant byte first, as `to.len()` digits; what does not fit is cut
/// off at the top.
pub(crate) fn write<const N: usize>(mut number: [u8; N], to: &mut [u8]) {
    for place in to.iter_mut().rev() {
        let mut rest = 0_usize;
        for byte in &mut number {
            let dividend = rest * 256 + usize::from(*byte);
            *byte = u8::try_from(dividend / 62).expect("the rest is below 62");
            rest = dividend % 62;
        }
        *place = DIGITS[rest];
    }
    zeroize::Zeroize::zeroize(&mut number[..]);
}

/// Says whether a text has digits only.
pub(crate) fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<const N: usize>(number: [u8; N], len: usize) -> String {
        let mut digits = vec![0; len];
        write(number, &mut digits);
        String::from_utf8(digits).expect("digits")
    }

    #[test]
    fn numbers_are_written_with_leading_zeros() {
        assert_eq!(text([0], 3), "000");
        assert_eq!(text([61], 3), "00z");
        assert_eq!(text([62], 3), "010");
        assert_eq!(text(u32::MAX.to_be_bytes(), 6), "4gfFC3");
    }

    #[test]
    fn forty_three_digits_hold_every_key_of_256_bits() {
        // 62^43 > 2^256: the first digit of the largest is not lost.
        assert_ne!(text([255; 32], 43), text([255; 32], 44)[..43]);
        assert_eq!(text([255; 32], 44), format!("0{}", text([255; 32], 43)));
    }
}
